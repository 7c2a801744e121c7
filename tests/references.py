"""Slow float64 loops, written weight by weight from the papers' equations and independent of the library.

``gradient(theta, t)`` is the mean gradient at step ``t`` (from 0), ``eps(t, s)`` the noise of sample ``s``; both work
on lists of floats. Each function returns the mean and the precision after ``steps`` steps.
"""

import math


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


REFERENCES = {"vadam": vadam, "vprop": vprop, "vadagrad": vadagrad, "ivon": ivon}
