"""Slow float64 loops, written weight by weight from the papers' equations and independent of the library.

Each rule takes the mean at the start, a number of steps and a :class:`Setting`, and returns the mean and the precision
after these steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy


@dataclass(frozen=True)
class Setting:
    """A problem and the hyper-parameters.

    ``gradient(theta, t)`` is the mean gradient at step ``t`` (from 0), ``hessian(theta, t)`` the Hessian's diagonal
    (``dense_von``: the matrix), ``eps(t, s)`` the noise of sample ``s``; all work on lists of floats. Without
    ``hessian`` the curvature of the methods that need it is read off the noise.
    """

    gradient: Callable[..., Any]
    eps: Callable[..., Any]
    lr: float
    betas: Any
    num_data: float
    initial_precision: float
    prior_precision: float = 0.0
    temperature: float = 1.0
    mc_samples: int = 1
    prior_mean: Any = None
    hessian: Callable[..., Any] | None = None
    correction: str | None = None
    clip_radius: float = math.inf
    rescale_lr: bool = True

    def betas_at(self, t):
        return self.betas(t) if callable(self.betas) else self.betas

    @property
    def lt(self):
        """The prior precision of one example."""
        return self.prior_precision / self.num_data

    @property
    def in_precision(self):
        """The prior's part in the precision: none at temperature 0."""
        return self.lt if self.temperature > 0 else 0.0

    @property
    def start(self):
        """The running curvature before the first step."""
        return self.initial_precision / self.num_data - self.in_precision

    def from_prior(self, mu, j):
        """The gradient of the tempered prior of one weight, for one example."""
        return self.temperature * self.lt * (mu[j] - (self.prior_mean[j] if self.prior_mean else 0.0))

    def precision(self, s):
        return [self.num_data * (value + self.in_precision) for value in s]

    def samples(self, mu, precision, t):
        """Noise, standard deviations, sampled weights and gradients of the samples of a step."""
        sigma = [1 / math.sqrt(value) for value in precision]
        for sample in range(self.mc_samples):
            e = self.eps(t, sample)
            theta = [mu[j] + sigma[j] * e[j] for j in range(len(mu))]
            yield e, sigma, theta, self.gradient(theta, t)

    def squared(self, mu, precision, t):
        """Mean gradient and mean squared gradient over the samples of one step."""
        g, h = [0.0] * len(mu), [0.0] * len(mu)
        for _, _, _, at in self.samples(mu, precision, t):
            for j, value in enumerate(at):
                g[j] += value / self.mc_samples
                h[j] += value**2 / self.mc_samples
        return g, h

    def curved(self, mu, precision, t):
        """Mean gradient and mean Hessian diagonal over the samples of one step."""
        g, h = [0.0] * len(mu), [0.0] * len(mu)
        for e, sigma, theta, at in self.samples(mu, precision, t):
            read_off = [at[j] * e[j] / sigma[j] for j in range(len(mu))]
            second = self.hessian(theta, t) if self.hessian else read_off
            for j in range(len(mu)):
                g[j] += at[j] / self.mc_samples
                h[j] += second[j] / self.mc_samples
        return g, h

    def followed(self, s, h, rate, correction):
        """The running Hessian after one step: Khan et al.'s, or with the correction of Lin et al. 2020 or of eq. 63."""
        tau, n = self.temperature, len(s)
        falls = [tau * s[j] - h[j] for j in range(n)]
        if correction == "backtracking":
            rate = min([rate, *(0.5 * (s[j] + self.in_precision) / falls[j] for j in range(n) if falls[j] > 0)])
        new = [(1 - tau * rate) * s[j] + rate * h[j] for j in range(n)]
        if correction == "elementwise":
            new = [new[j] + rate**2 / 2 * falls[j] ** 2 / (s[j] + self.in_precision) for j in range(n)]
        return new


def vadam(mu, steps, p):
    """Khan et al. 2018, Fig. 1; s0 is not bias-corrected; temperature by eqs. 22-24."""
    mu, n = list(mu), len(mu)
    m, v = [0.0] * n, [0.0] * n
    share, p1, p2 = 1.0, 1.0, 1.0
    for t in range(steps):
        b1, b2 = p.betas_at(t)
        g, h = p.squared(mu, p.precision([v[j] + share * p.start for j in range(n)]), t)
        share *= 1 - p.temperature * (1 - b2)
        p1, p2 = p1 * b1, p2 * b2
        for j in range(n):
            m[j] = b1 * m[j] + (1 - b1) * (g[j] + p.from_prior(mu, j))
            v[j] = (1 - p.temperature * (1 - b2)) * v[j] + (1 - b2) * h[j]
            mu[j] -= p.lr * (m[j] / (1 - p1)) / (math.sqrt(v[j] / (1 - p2)) + p.lt)
    return mu, p.precision([v[j] + share * p.start for j in range(n)])


def vprop(mu, steps, p):
    """Khan et al. 2018, section 3.3, eq. 14 (Vprop)."""
    mu, n = list(mu), len(mu)
    s = [p.start] * n
    for t in range(steps):
        _, b2 = p.betas_at(t)
        g, h = p.squared(mu, p.precision(s), t)
        for j in range(n):
            s[j] = (1 - p.temperature * (1 - b2)) * s[j] + (1 - b2) * h[j]
            mu[j] -= p.lr * (g[j] + p.from_prior(mu, j)) / (math.sqrt(s[j]) + p.lt)
    return mu, p.precision(s)


def vadagrad(mu, steps, p):
    """Khan et al. 2018, section 5, eq. 96 (VadaGrad): F is the summed loss, the precision is s."""
    mu, n = list(mu), len(mu)
    s = [p.initial_precision] * n
    for t in range(steps):
        _, b2 = p.betas_at(t)
        g, h = p.squared(mu, s, t)
        for j in range(n):
            s[j] += (1 - b2) * p.num_data**2 * h[j]
            mu[j] -= p.lr * p.num_data * g[j] / math.sqrt(s[j])
    return mu, s


def ivon(mu, steps, p):
    """Shen et al. 2024, Algorithm 1, with Price's estimator and the learning rate rescaled by s0 + d."""
    mu, n = list(mu), len(mu)
    s, m, p1 = [p.start] * n, [0.0] * n, 1.0
    factor = p.initial_precision / p.num_data if p.rescale_lr else 1.0
    for t in range(steps):
        b1, b2 = p.betas_at(t)
        g, h = p.curved(mu, p.precision(s), t)
        s = p.followed(s, h, 1 - b2, "elementwise")
        p1 *= b1
        for j in range(n):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            step = (m[j] / (1 - p1) + p.from_prior(mu, j)) / (s[j] + p.lt)
            mu[j] -= p.lr * factor * max(-p.clip_radius, min(p.clip_radius, step))
    return mu, p.precision(s)


def von(mu, steps, p):
    """Khan et al. 2018, eq. 8, with ``tau`` eqs. 23-24; VAN is the same at temperature 0."""
    mu, n = list(mu), len(mu)
    s = [p.start] * n
    for t in range(steps):
        _, b2 = p.betas_at(t)
        g, h = p.curved(mu, p.precision(s), t)
        s = p.followed(s, h, 1 - b2, p.correction)
        for j in range(n):
            step = (g[j] + p.from_prior(mu, j)) / (s[j] + p.lt)
            mu[j] -= p.lr * max(-p.clip_radius, min(p.clip_radius, step))
    return mu, p.precision(s)


def ngvi(mu, steps, p):
    """Khan et al. 2018, appendix C, on the natural parameters themselves: prior and data each give a pair of them."""
    n, tau, prior = len(mu), p.temperature, p.prior_precision
    mu0 = p.prior_mean or [0.0] * n
    precision = [p.initial_precision] * n
    eta = [p.initial_precision * value for value in mu]
    for t in range(steps):
        mean = [eta[j] / precision[j] for j in range(n)]
        g, h = p.curved(mean, precision, t)
        rate = p.lr
        if p.correction == "backtracking":
            falls = [tau * (precision[j] - prior) - p.num_data * h[j] for j in range(n)]
            rate = min([rate, *(0.5 * precision[j] / falls[j] for j in range(n) if falls[j] > 0)])
        for j in range(n):
            data = p.num_data * h[j]
            new = (1 - tau * rate) * precision[j] + rate * (tau * prior + data)
            eta[j] = (1 - tau * rate) * eta[j] + rate * (tau * prior * mu0[j] + data * mean[j] - p.num_data * g[j])
            extra = 0.5 * (new - precision[j]) ** 2 / precision[j] if p.correction == "elementwise" else 0.0
            precision[j] = new + extra
            eta[j] += extra * mean[j]
    return [eta[j] / precision[j] for j in range(n)], precision


def natural(mu, steps, p, *, squared):
    """Khan et al. 2018, eqs. 82-83, the diagonal of the matrices, or eqs. 86-87; with a rate of its own for ``s``."""
    mu, before, n = list(mu), list(mu), len(mu)
    s = [p.start] * n
    root = math.sqrt if squared else float
    for t in range(steps):
        c, b2 = p.betas_at(t)
        g, h = (p.squared if squared else p.curved)(mu, p.precision(s), t)
        if squared:
            new = [(1 - p.temperature * (1 - b2)) * s[j] + (1 - b2) * h[j] for j in range(n)]
        else:
            new = p.followed(s, h, 1 - b2, p.correction)
        after = [
            mu[j]
            - p.lr / (root(new[j]) + p.lt) * (g[j] + p.from_prior(mu, j))
            + c * (root(s[j]) + p.lt) / (root(new[j]) + p.lt) * (mu[j] - before[j])
            for j in range(n)
        ]
        before, mu, s = mu, after, new
    return mu, p.precision(s)


def vogn(mu, steps, p):
    """Khan et al. 2018, section 3.2, with the momentum of Osawa et al. 2019; every minibatch is one example."""
    mu, n = list(mu), len(mu)
    s, m, p1 = [p.start] * n, [0.0] * n, 1.0
    for t in range(steps):
        b1, b2 = p.betas_at(t)
        g, h = p.squared(mu, p.precision(s), t)
        p1 *= b1
        for j in range(n):
            m[j] = b1 * m[j] + (1 - b1) * (g[j] + p.from_prior(mu, j))
            s[j] = (1 - p.temperature * (1 - b2)) * s[j] + (1 - b2) * h[j]
            mu[j] -= p.lr * (m[j] / (1 - p1)) / (s[j] + p.lt)
    return mu, p.precision(s)


def bbb(mu, steps, p):
    """Blundell et al. 2015, section 3.2, with the divergence in closed form, and Adam on mean and rho."""
    mu, n = list(mu), len(mu)
    rho = [math.log(math.expm1(1 / math.sqrt(p.initial_precision)))] * n
    m, v = ([[0.0] * n, [0.0] * n] for _ in range(2))
    p1, p2 = 1.0, 1.0
    for t in range(steps):
        b1, b2 = p.betas_at(t)
        p1, p2 = p1 * b1, p2 * b2
        g, h = [0.0] * n, [0.0] * n
        sigma = [math.log1p(math.exp(r)) for r in rho]
        for e, _, _, at in p.samples(mu, [1 / value**2 for value in sigma], t):
            for j, value in enumerate(at):
                g[j] += value / p.mc_samples
                h[j] += value * e[j] / p.mc_samples
        for j in range(n):
            of_sigma = h[j] + p.temperature / p.num_data * (p.prior_precision * sigma[j] - 1 / sigma[j])
            slopes = (g[j] + p.from_prior(mu, j), of_sigma / (1 + math.exp(-rho[j])))
            moves = []
            for i, slope in enumerate(slopes):
                m[i][j] = b1 * m[i][j] + (1 - b1) * slope
                v[i][j] = b2 * v[i][j] + (1 - b2) * slope**2
                moves.append(p.lr * (m[i][j] / (1 - p1)) / (math.sqrt(v[i][j] / (1 - p2)) + 1e-8))
            mu[j] -= moves[0]
            rho[j] -= moves[1]
    return mu, [1 / math.log1p(math.exp(r)) ** 2 for r in rho]


def dense_von(mu, steps, p):
    """VON with a full covariance (Khan et al. 2018, eqs. 52-54).

    Without ``hessian``, it is the symmetric part of ``P (theta - mu) g'``. The correction is
    ``r^2 / 2 E (S + d)^-1 E``.
    """
    mu, n = numpy.array(mu, dtype=float), len(mu)
    one = numpy.eye(n)
    s = p.start * one
    for t in range(steps):
        _, b2 = p.betas_at(t)
        g, h = numpy.zeros(n), numpy.zeros((n, n))
        for sample in range(p.mc_samples):
            precision = p.num_data * (s + p.in_precision * one)
            root = numpy.linalg.cholesky(precision)
            theta = mu + numpy.linalg.inv(root).T @ numpy.array(p.eps(t, sample))
            at = numpy.array(p.gradient(theta.tolist(), t))
            read_off = numpy.outer(precision @ (theta - mu), at)
            second = numpy.array(p.hessian(theta.tolist(), t)) if p.hessian else read_off
            g += at / p.mc_samples
            h += (second + second.T) / 2 / p.mc_samples
        error = p.temperature * s - h
        extra = 0.5 * (1 - b2) ** 2 * error @ numpy.linalg.inv(s + p.in_precision * one) @ error
        s = s - (1 - b2) * error + (extra if p.correction == "elementwise" else 0.0)
        step = numpy.linalg.inv(s + p.lt * one) @ (g + p.temperature * p.lt * mu)
        mu = mu - p.lr * numpy.clip(step, -p.clip_radius, p.clip_radius)
    return mu.tolist(), (p.num_data * (s + p.in_precision * one)).tolist()


REFERENCES = {
    "bbb": bbb,
    "vadam": vadam,
    "vprop": vprop,
    "vadagrad": vadagrad,
    "ivon": ivon,
    "von": von,
    "van": von,
    "ngvi": ngvi,
    "natural_von": partial(natural, squared=False),
    "natural_vadam": partial(natural, squared=True),
    "vogn": vogn,
}
