"""Slow float64 loops, written weight by weight from the papers' equations and independent of the library.

``gradient(theta, t)`` is the mean gradient at step ``t`` (from 0), ``eps(t, s)`` the noise of sample ``s``; both work
on lists of floats. Each function returns the mean and the precision after ``steps`` steps.
"""

import math

import numpy


def vadam(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
):
    """Khan et al. 2018, Fig. 1; s0 is not bias-corrected; temperature by eqs. 22-24 (methods section 2)."""
    mu, n = list(mu), len(mu)
    mu0 = prior_mean or [0.0] * n
    lt = prior_precision / num_data
    in_precision = lt if temperature > 0 else 0.0
    s0 = initial_precision / num_data - in_precision
    m, v = [0.0] * n, [0.0] * n
    share, p1, p2 = 1.0, 1.0, 1.0
    for t in range(steps):
        b1, b2 = betas(t) if callable(betas) else betas
        s = [v[j] + share * s0 for j in range(n)]
        g, h = sampled(mu, s, in_precision, num_data, gradient, eps, t, mc_samples)
        share *= 1 - temperature * (1 - b2)
        p1, p2 = p1 * b1, p2 * b2
        for j in range(n):
            m[j] = b1 * m[j] + (1 - b1) * (g[j] + temperature * lt * (mu[j] - mu0[j]))
            v[j] = (1 - temperature * (1 - b2)) * v[j] + (1 - b2) * h[j]
            mu[j] -= lr * (m[j] / (1 - p1)) / (math.sqrt(v[j] / (1 - p2)) + lt)
    return mu, [num_data * (v[j] + share * s0 + in_precision) for j in range(n)]


def vprop(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
):
    """Khan et al. 2018, section 3.2 (Vprop)."""
    mu, n = list(mu), len(mu)
    mu0 = prior_mean or [0.0] * n
    lt = prior_precision / num_data
    in_precision = lt if temperature > 0 else 0.0
    s = [initial_precision / num_data - in_precision] * n
    for t in range(steps):
        _, b2 = betas(t) if callable(betas) else betas
        g, h = sampled(mu, s, in_precision, num_data, gradient, eps, t, mc_samples)
        for j in range(n):
            s[j] = (1 - temperature * (1 - b2)) * s[j] + (1 - b2) * h[j]
            mu[j] -= lr * (g[j] + temperature * lt * (mu[j] - mu0[j])) / (math.sqrt(s[j]) + lt)
    return mu, [num_data * (s[j] + in_precision) for j in range(n)]


def vadagrad(mu, gradient, eps, steps, *, lr, betas, num_data, initial_precision, mc_samples=1):
    """Khan et al. 2018, section 4 (VadaGrad): F is the summed loss, the precision is s."""
    mu, n = list(mu), len(mu)
    s = [initial_precision] * n
    for t in range(steps):
        _, b2 = betas(t) if callable(betas) else betas

        def total(theta, t):
            return [num_data * g for g in gradient(theta, t)]

        g, h = sampled(mu, s, 0.0, 1.0, total, eps, t, mc_samples)
        for j in range(n):
            s[j] += (1 - b2) * h[j]
            mu[j] -= lr * g[j] / math.sqrt(s[j])
    return mu, s


def ivon(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
    clip_radius=math.inf,
    rescale_lr=True,
):
    """Shen et al. 2024, Algorithm 1, with Price's estimator and the learning rate rescaled by s0 + d."""
    mu, n = list(mu), len(mu)
    mu0 = prior_mean or [0.0] * n
    d = prior_precision / num_data
    in_precision = d if temperature > 0 else 0.0
    s = [initial_precision / num_data - in_precision] * n
    m, p1 = [0.0] * n, 1.0
    factor = initial_precision / num_data if rescale_lr else 1.0
    for t in range(steps):
        b1, b2 = betas(t) if callable(betas) else betas
        g, h = [0.0] * n, [0.0] * n
        for sample in range(mc_samples):
            sigma = [1 / math.sqrt(num_data * (s[j] + in_precision)) for j in range(n)]
            e = eps(t, sample)
            at = gradient([mu[j] + sigma[j] * e[j] for j in range(n)], t)
            for j in range(n):
                g[j] += at[j] / mc_samples
                h[j] += at[j] * e[j] / sigma[j] / mc_samples
        p1 *= b1
        for j in range(n):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            error = temperature * s[j] - h[j]
            s[j] += -(1 - b2) * error + 0.5 * (1 - b2) ** 2 * error**2 / (s[j] + in_precision)
            step = (m[j] / (1 - p1) + temperature * d * (mu[j] - mu0[j])) / (s[j] + d)
            mu[j] -= lr * factor * max(-clip_radius, min(clip_radius, step))
    return mu, [num_data * (s[j] + in_precision) for j in range(n)]


def von(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
    hessian=None,
    correction="elementwise",
    clip_radius=math.inf,
):
    """Khan et al. 2018, eq. 8, with ``tau`` eqs. 23-24; the corrections are Lin et al. 2020's and eq. 63's.

    ``hessian(theta, t)`` gives the diagonal; without it it is ``g eps / sigma``.
    """
    mu, n = list(mu), len(mu)
    mu0 = prior_mean or [0.0] * n
    lt = prior_precision / num_data
    in_precision = lt if temperature > 0 else 0.0
    s = [initial_precision / num_data - in_precision] * n
    for t in range(steps):
        _, b2 = betas(t) if callable(betas) else betas
        g, h = curved(mu, s, in_precision, num_data, gradient, hessian, eps, t, mc_samples)
        s = followed(s, h, 1 - b2, temperature, in_precision, correction)
        for j in range(n):
            step = (g[j] + temperature * lt * (mu[j] - mu0[j])) / (s[j] + lt)
            mu[j] -= lr * max(-clip_radius, min(clip_radius, step))
    return mu, [num_data * (s[j] + in_precision) for j in range(n)]


def van(mu, gradient, eps, steps, *, temperature=0.0, **hp):
    """Khan et al. 2018, eqs. 22-24: VON's rule with ``tau``, by default 0."""
    return von(mu, gradient, eps, steps, temperature=temperature, **hp)


def ngvi(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
    hessian=None,
    correction="elementwise",
):
    """Khan et al. 2018, appendix C, on the natural parameters themselves: prior and data each give a pair of them."""
    n = len(mu)
    mu0 = prior_mean or [0.0] * n
    precision = [initial_precision] * n
    eta = [initial_precision * value for value in mu]
    for t in range(steps):
        mean = [eta[j] / precision[j] for j in range(n)]
        g, h = curved(mean, precision, 0.0, 1.0, gradient, hessian, eps, t, mc_samples)
        rate = lr
        if correction == "backtracking":
            falls = [temperature * (precision[j] - prior_precision) - num_data * h[j] for j in range(n)]
            rate = min([lr, *(0.5 * precision[j] / falls[j] for j in range(n) if falls[j] > 0)])
        for j in range(n):
            prior, data = prior_precision, num_data * h[j]
            new = (1 - temperature * rate) * precision[j] + rate * (temperature * prior + data)
            eta[j] = (1 - temperature * rate) * eta[j] + rate * (
                temperature * prior * mu0[j] + data * mean[j] - num_data * g[j]
            )
            extra = 0.5 * (new - precision[j]) ** 2 / precision[j] if correction == "elementwise" else 0.0
            precision[j] = new + extra
            eta[j] += extra * mean[j]
    return [eta[j] / precision[j] for j in range(n)], precision


def natural_von(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
    hessian=None,
    correction="elementwise",
):
    """Khan et al. 2018, eqs. 82-83, the diagonal of the matrices, with a rate of its own for ``s``."""
    mu, n = list(mu), len(mu)
    before = list(mu)
    mu0 = prior_mean or [0.0] * n
    lt = prior_precision / num_data
    in_precision = lt if temperature > 0 else 0.0
    s = [initial_precision / num_data - in_precision] * n
    for t in range(steps):
        c, b2 = betas(t) if callable(betas) else betas
        g, h = curved(mu, s, in_precision, num_data, gradient, hessian, eps, t, mc_samples)
        new = followed(s, h, 1 - b2, temperature, in_precision, correction)
        after = [
            mu[j]
            - lr / (new[j] + lt) * (g[j] + temperature * lt * (mu[j] - mu0[j]))
            + c * (s[j] + lt) / (new[j] + lt) * (mu[j] - before[j])
            for j in range(n)
        ]
        before, mu, s = mu, after, new
    return mu, [num_data * (s[j] + in_precision) for j in range(n)]


def natural_vadam(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
):
    """Khan et al. 2018, eqs. 86-87, with a rate of its own for ``s``."""
    mu, n = list(mu), len(mu)
    before = list(mu)
    mu0 = prior_mean or [0.0] * n
    lt = prior_precision / num_data
    in_precision = lt if temperature > 0 else 0.0
    s = [initial_precision / num_data - in_precision] * n
    for t in range(steps):
        c, b2 = betas(t) if callable(betas) else betas
        g, h = sampled(mu, s, in_precision, num_data, gradient, eps, t, mc_samples)
        new = [(1 - temperature * (1 - b2)) * s[j] + (1 - b2) * h[j] for j in range(n)]
        after = [
            mu[j]
            - lr / (math.sqrt(new[j]) + lt) * (g[j] + temperature * lt * (mu[j] - mu0[j]))
            + c * (math.sqrt(s[j]) + lt) / (math.sqrt(new[j]) + lt) * (mu[j] - before[j])
            for j in range(n)
        ]
        before, mu, s = mu, after, new
    return mu, [num_data * (s[j] + in_precision) for j in range(n)]


def vogn(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
):
    """Khan et al. 2018, section 3.2, with the momentum of Osawa et al. 2019; every minibatch is one example."""
    mu, n = list(mu), len(mu)
    mu0 = prior_mean or [0.0] * n
    lt = prior_precision / num_data
    in_precision = lt if temperature > 0 else 0.0
    s = [initial_precision / num_data - in_precision] * n
    m, p1 = [0.0] * n, 1.0
    for t in range(steps):
        b1, b2 = betas(t) if callable(betas) else betas
        g, h = sampled(mu, s, in_precision, num_data, gradient, eps, t, mc_samples)
        p1 *= b1
        for j in range(n):
            m[j] = b1 * m[j] + (1 - b1) * (g[j] + temperature * lt * (mu[j] - mu0[j]))
            s[j] = (1 - temperature * (1 - b2)) * s[j] + (1 - b2) * h[j]
            mu[j] -= lr * (m[j] / (1 - p1)) / (s[j] + lt)
    return mu, [num_data * (s[j] + in_precision) for j in range(n)]


def dense_von(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
    hessian=None,
    correction="elementwise",
    clip_radius=math.inf,
):
    """VON with a full covariance (Khan et al. 2018, eqs. 58-60): ``hessian(theta, t)`` gives a matrix.

    Without it, it is the symmetric part of ``P (theta - mu) g'``. The correction is ``r^2 / 2 E (S + d)^-1 E``.
    """
    mu, n = numpy.array(mu, dtype=float), len(mu)
    mu0 = numpy.array(prior_mean or [0.0] * n)
    lt = prior_precision / num_data
    in_precision = lt if temperature > 0 else 0.0
    one = numpy.eye(n)
    s = (initial_precision / num_data - in_precision) * one
    for t in range(steps):
        _, b2 = betas(t) if callable(betas) else betas
        g, h = numpy.zeros(n), numpy.zeros((n, n))
        for sample in range(mc_samples):
            precision = num_data * (s + in_precision * one)
            root = numpy.linalg.cholesky(precision)
            theta = mu + numpy.linalg.inv(root).T @ numpy.array(eps(t, sample))
            at = numpy.array(gradient(theta.tolist(), t))
            score = precision @ (theta - mu)
            found = numpy.outer(score, at) if hessian is None else numpy.array(hessian(theta.tolist(), t))
            g += at / mc_samples
            h += (found + found.T) / 2 / mc_samples
        error = temperature * s - h
        extra = 0.5 * (1 - b2) ** 2 * error @ numpy.linalg.inv(s + in_precision * one) @ error
        s = s - (1 - b2) * error + (extra if correction == "elementwise" else 0.0)
        step = numpy.linalg.inv(s + lt * one) @ (g + temperature * lt * (mu - mu0))
        mu = mu - lr * numpy.clip(step, -clip_radius, clip_radius)
    return mu.tolist(), (num_data * (s + in_precision * one)).tolist()


def curved(mu, s, in_precision, num_data, gradient, hessian, eps, t, mc_samples):
    """Mean gradient and mean Hessian diagonal over the samples of one step."""
    n = len(mu)
    g, h = [0.0] * n, [0.0] * n
    for sample in range(mc_samples):
        e = eps(t, sample)
        sigma = [1 / math.sqrt(num_data * (s[j] + in_precision)) for j in range(n)]
        theta = [mu[j] + sigma[j] * e[j] for j in range(n)]
        at = gradient(theta, t)
        second = [at[j] * e[j] / sigma[j] for j in range(n)] if hessian is None else hessian(theta, t)
        for j in range(n):
            g[j] += at[j] / mc_samples
            h[j] += second[j] / mc_samples
    return g, h


def followed(s, h, rate, temperature, in_precision, correction):
    """The running Hessian after one step."""
    n = len(s)
    falls = [temperature * s[j] - h[j] for j in range(n)]
    if correction == "backtracking":
        rate = min([rate, *(0.5 * (s[j] + in_precision) / falls[j] for j in range(n) if falls[j] > 0)])
    new = [(1 - temperature * rate) * s[j] + rate * h[j] for j in range(n)]
    if correction == "elementwise":
        new = [new[j] + rate**2 / 2 * falls[j] ** 2 / (s[j] + in_precision) for j in range(n)]
    return new


def bbb(
    mu,
    gradient,
    eps,
    steps,
    *,
    lr,
    betas,
    num_data,
    prior_precision,
    initial_precision,
    temperature=1.0,
    mc_samples=1,
    prior_mean=None,
):
    """Blundell et al. 2015, section 3.2, with the divergence in closed form, and Adam on mean and rho."""
    mu, n = list(mu), len(mu)
    mu0 = prior_mean or [0.0] * n
    rho = [math.log(math.expm1(1 / math.sqrt(initial_precision)))] * n
    m, v = ([[0.0] * n, [0.0] * n] for _ in range(2))
    p1, p2 = 1.0, 1.0
    for t in range(steps):
        b1, b2 = betas(t) if callable(betas) else betas
        p1, p2 = p1 * b1, p2 * b2
        sigma = [math.log1p(math.exp(r)) for r in rho]
        g, h = [0.0] * n, [0.0] * n
        for sample in range(mc_samples):
            e = eps(t, sample)
            for j, value in enumerate(gradient([mu[j] + sigma[j] * e[j] for j in range(n)], t)):
                g[j] += value / mc_samples
                h[j] += value * e[j] / mc_samples
        for j in range(n):
            of_sigma = h[j] + temperature / num_data * (prior_precision * sigma[j] - 1 / sigma[j])
            slopes = (
                g[j] + temperature * prior_precision / num_data * (mu[j] - mu0[j]),
                of_sigma / (1 + math.exp(-rho[j])),
            )
            moves = []
            for i, slope in enumerate(slopes):
                m[i][j] = b1 * m[i][j] + (1 - b1) * slope
                v[i][j] = b2 * v[i][j] + (1 - b2) * slope**2
                moves.append(lr * (m[i][j] / (1 - p1)) / (math.sqrt(v[i][j] / (1 - p2)) + 1e-8))
            mu[j] -= moves[0]
            rho[j] -= moves[1]
    return mu, [1 / math.log1p(math.exp(r)) ** 2 for r in rho]


def sampled(mu, s, in_precision, num_data, gradient, eps, t, mc_samples):
    """Mean gradient and mean squared gradient over the samples of one step."""
    n = len(mu)
    g, h = [0.0] * n, [0.0] * n
    for sample in range(mc_samples):
        e = eps(t, sample)
        theta = [mu[j] + e[j] / math.sqrt(num_data * (s[j] + in_precision)) for j in range(n)]
        for j, value in enumerate(gradient(theta, t)):
            g[j] += value / mc_samples
            h[j] += value**2 / mc_samples
    return g, h


REFERENCES = {
    "bbb": bbb,
    "vadam": vadam,
    "vprop": vprop,
    "vadagrad": vadagrad,
    "ivon": ivon,
    "von": von,
    "van": van,
    "ngvi": ngvi,
    "natural_von": natural_von,
    "natural_vadam": natural_vadam,
    "vogn": vogn,
}
