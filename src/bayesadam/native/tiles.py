"""Functions of Triton, imported only where there is Triton: standard normals, equal to ``normal.h``'s up to rounding,
filling tensors with them, and a check that gradients are finite.

One program has up to :data:`BLOCK` lanes of a tile of noise, and with them four runs of consecutive elements. Tables of
addresses are as in the C++ sources: a row for each run of elements. ``parts`` has a pair for each program: its row, and
its number among the programs of this row.
"""

import triton
import triton.language as tl

from bayesadam.native import device

BLOCK = tl.constexpr(device.BLOCK)
LANES = tl.constexpr(device.LANES)
CHUNK = tl.constexpr(device.CHUNK)
PROGRAMS = tl.constexpr(device.PROGRAMS)
NONE = tl.constexpr(device.NONE)
FILL_COLUMNS = tl.constexpr(device.FILL_COLUMNS)


@triton.jit
def natural_log(u):
    """Logarithm of normal numbers, as in ``normal.h``."""
    bits = u.to(tl.uint32, bitcast=True)
    exponent = (bits - 0x3F3504F3).to(tl.int32, bitcast=True) >> 23
    x = (bits - (exponent << 23).to(tl.uint32, bitcast=True)).to(tl.float32, bitcast=True) - 1.0
    p = tl.fma(x, 8.7223075330e-2, -1.4366818965e-1)
    p = tl.fma(p, x, 1.4952273667e-1)
    p = tl.fma(p, x, -1.6562396288e-1)
    p = tl.fma(p, x, 1.9956833124e-1)
    p = tl.fma(p, x, -2.5002074242e-1)
    p = tl.fma(p, x, 3.3334186673e-1)
    p = tl.fma(p, x, -4.9999988079e-1)
    p = tl.fma(p, x, 1.0)
    return tl.fma(exponent.to(tl.float32), 0.693147182, x * p)


@triton.jit
def with_sign(x, word):
    """``x``, negated if the highest bit of the word is set."""
    return (x.to(tl.uint32, bitcast=True) ^ (word & 0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def sine_and_cosine(word):
    """Sine and cosine of ``2 pi word / 2^32``, times the root of 2, as in ``normal.h``."""
    is_odd = word << 1
    centred = (word << 2 ^ 0x80000000).to(tl.int32, bitcast=True).to(tl.float32) * 4.656612873077393e-10
    x = with_sign(centred, is_odd)
    z = x * x
    p = tl.fma(tl.fma(tl.fma(z, -3.59504520e-5, 2.49000103e-3), z, -8.07454363e-2), z, 7.85398185e-1)
    q = tl.fma(tl.fma(tl.fma(z, -3.18880513e-4, 1.58499144e-2), z, -3.08424264e-1), z, 1.0)
    return with_sign(tl.fma(p, x, q), word), with_sign(tl.fma(-p, x, q), word ^ is_odd)


@triton.jit
def box_muller(first, second, sign):
    """Two normals from two random words."""
    uniform = tl.fma(first.to(tl.float32), 2.3283064365386963e-10, 1.1641532182693481e-10)
    sine, cosine = sine_and_cosine(second)
    radius = sign * tl.sqrt_rn(-natural_log(uniform))
    return cosine * radius, sine * radius


@triton.jit
def normals(tile, lane, index, low, high, step, number, sign):
    """The four outputs of some lanes of a tile; ``number`` is that of the sample, with the stream in its highest
    bits.
    """
    zero = (lane * 0).to(tl.uint32)
    c0 = (tile * LANES + lane).to(tl.uint32)
    c1 = zero + index.to(tl.uint32)
    c2 = zero + step.to(tl.uint32)
    c3 = zero + number.to(tl.uint32)
    k0 = low.to(tl.uint32)
    k1 = high.to(tl.uint32)
    for _ in tl.static_range(7):
        p = tl.umulhi(c0, zero + 0xD2511F53)
        q = tl.umulhi(c2, zero + 0xCD9E8D57)
        c3, c1, c2, c0 = c0 * 0xD2511F53, c2 * 0xCD9E8D57, p ^ c3 ^ k1, q ^ c1 ^ k0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    a, b = box_muller(c0, c1, sign)
    c, d = box_muller(c2, c3, sign)
    return a, b, c, d


@triton.jit
def place(parts, table, columns: tl.constexpr):
    """The place of a program: the number of its row, the row, its tile, its lanes, the lanes of the whole tile, and the
    offset of the tile from the start of the run.

    Only elements ``0 <= begin + k * lanes + lane < size`` of output ``k`` belong to the run.
    """
    part = tl.program_id(0).to(tl.int64)
    at = tl.load(parts + 2 * part).to(tl.int64)
    row = table + at * columns
    number = tl.load(parts + 2 * part + 1)
    first = tl.load(row)
    lanes = tl.load(row + 2).to(tl.int32)
    blocks = tl.cdiv(lanes, BLOCK)
    tile = first // (4 * LANES) + number // blocks
    lane = (number % blocks) * BLOCK + tl.arange(0, BLOCK)
    return at, row, tile, lane, lanes, tile * (4 * LANES) - first


@triton.jit
def inside(at, lane, lanes, begin, size):
    """Whether the elements at the offsets ``at`` from ``begin`` belong to the run."""
    return (lane < lanes) & (begin + at >= 0) & (begin + at < size)


@triton.jit
def channels_last(at, begin, positions, channels):
    """Offsets in memory of the elements at ``at`` from ``begin``, for the memory format ``channels_last``; with 0
    channels, for memory in the order of the elements.
    """
    if channels > 1:
        first = begin.to(tl.int32)
        element = first + at
        whole = positions * channels
        at = element // whole * whole + element % positions * channels + element // positions % channels - first
    return at


@triton.jit
def fill(parts, table, columns: tl.constexpr):
    """Fill runs with normals, or with samples of independent Gaussians; a table as in
    :func:`bayesadam.native.device.fill`.
    """
    _, row, tile, lane, lanes, begin = place(parts, table, columns)
    size = tl.load(row + 1)
    out = tl.load(row + 8).to(tl.pointer_type(tl.float32)) + begin
    mean, deviation, positions, channels = out, out, 0, 0
    if columns > FILL_COLUMNS:
        mean = tl.load(row + 9).to(tl.pointer_type(tl.float32)) + begin
        deviation = tl.load(row + 10).to(tl.pointer_type(tl.float32)) + begin
        positions, channels = tl.load(row + 11).to(tl.int32), tl.load(row + 12).to(tl.int32)
    a, b, c, d = normals(
        *(tile, lane, tl.load(row + 7)),
        *(tl.load(row + 3), tl.load(row + 4), tl.load(row + 5), tl.load(row + 6), 1.0),
    )
    store(lane, lane, lanes, begin, size, positions, channels, out, mean, deviation, a, columns)
    store(lanes + lane, lane, lanes, begin, size, positions, channels, out, mean, deviation, b, columns)
    store(2 * lanes + lane, lane, lanes, begin, size, positions, channels, out, mean, deviation, c, columns)
    store(3 * lanes + lane, lane, lanes, begin, size, positions, channels, out, mean, deviation, d, columns)


@triton.jit
def store(at, lane, lanes, begin, size, positions, channels, out, mean, deviation, normal, columns: tl.constexpr):
    """Write normals, or ``mean + deviation * normal``."""
    mask = inside(at, lane, lanes, begin, size)
    if columns > FILL_COLUMNS:
        at = channels_last(at, begin, positions, channels)
        spread = normal * tl.load(deviation + at, mask=mask, other=0.0)
        normal = tl.load(mean + at, mask=mask, other=0.0) + spread
    tl.store(out + at, normal, mask=mask)


@triton.jit
def anything(found):
    """Whether the check has found anything."""
    return tl.min(tl.load(found + tl.arange(0, PROGRAMS)), 0) < NONE


@triton.jit
def log1p(x):
    """``log(1 + x)``, also for small ``x``."""
    y = 1.0 + x
    return tl.where(y == 1.0, x, tl.log(y) * (x / (y - 1.0)))


@triton.jit
def expm1(x):
    """``exp(x) - 1``, also for small ``x``."""
    y = tl.exp(x)
    z = y - 1.0
    found = tl.where(y == 1.0, x, z * (x / tl.log(y)))
    return tl.where((tl.abs(x) < 1.0), found, z)


@triton.jit
def tanh(x):
    """The hyperbolic tangent, also for small ``x``."""
    y = expm1(-2.0 * tl.abs(x))
    z = -y / (y + 2.0)
    return tl.where(x < 0, -z, z)


@triton.jit
def power(x, y):
    """``x ** y``, also for negative ``x`` if ``y`` is whole, and 1 if ``y`` is 0."""
    y = tl.zeros_like(x) + y
    size = tl.exp(y * tl.log(tl.where(y == 0, 1.0, tl.abs(x))))
    signed = tl.where(tl.floor(y) != y, float("nan"), tl.where(2.0 * tl.floor(0.5 * y) == y, size, -size))
    return tl.where(x < 0, signed, size)


@triton.jit
def is_bad(address, at, mask, dtype: tl.constexpr, wide: tl.constexpr):
    """Whether an element is not finite, or its square is not."""
    x = tl.load(address.to(tl.pointer_type(dtype)) + at, mask=mask, other=0.0).to(wide)
    return tl.max((~(x * x < float("inf"))).to(tl.int32), 0)


@triton.jit(do_not_specialize=["count"])
def check(parts, table, count, found):
    """Write the number of the first gradient in this program's share that is not finite, or :data:`NONE`.

    A row has an address, a number of elements, and the number of the dtype. Programs share ``count`` chunks.
    """
    first = tl.full((), NONE, tl.int32)
    for part in range(tl.program_id(0), count, tl.num_programs(0)):
        number = tl.load(parts + 2 * part)
        row = table + 3 * number.to(tl.int64)
        address = tl.load(row)
        kind = tl.load(row + 2)
        at = tl.load(parts + 2 * part + 1).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
        mask = at < tl.load(row + 1)
        bad = tl.full((), 0, tl.int32)
        if kind == 0:
            bad = is_bad(address, at, mask, tl.float32, tl.float32)
        elif kind == 1:
            bad = is_bad(address, at, mask, tl.bfloat16, tl.float32)
        elif kind == 2:
            bad = is_bad(address, at, mask, tl.float16, tl.float32)
        else:
            bad = is_bad(address, at, mask, tl.float64, tl.float64)
        first = tl.where((bad > 0) & (number < first), number, first)
    tl.store(found + tl.program_id(0), first)
