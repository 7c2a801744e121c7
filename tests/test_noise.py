"""The noise against slow references and its own statistics: every bound is sharp enough for a planted 1% error."""

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special

from bayesadam import native, noise
from bayesadam.functional.philox import constants
from bayesadam.functional.philox import philox as philox_words
from bayesadam.noise import BLOCK, LANES, TILE, normal

NUM = 4 * 10**6
BOUND = 4.5
BASE = {"seed": 2**63 + 12345, "step": 10, "sample": 2, "index": 3, "stream": 0}
MULTIPLIERS, KEY_STEPS, MASK = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF


def philox(counter, key, rounds):
    """Salmon et al. 2011, Philox4x32, on Python integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(rounds):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & MASK, first >> 32 ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return [c0, c1, c2, c3]


def philox_inverse(words, key, rounds):
    """The counter that gives these words: every round is a bijection."""
    c0, c1, c2, c3 = words
    for i in reversed(range(rounds)):
        k0, k1 = ((k + i * step) & MASK for k, step in zip(key, KEY_STEPS, strict=True))
        b0, b2 = (word * pow(m, -1, 2**32) & MASK for word, m in zip((c3, c1), MULTIPLIERS, strict=True))
        c0, c1, c2, c3 = b0, c0 ^ MULTIPLIERS[1] * b2 >> 32 ^ k0, b2, c2 ^ MULTIPLIERS[0] * b0 >> 32 ^ k1
    return [c0, c1, c2, c3]


def element(number, seed, step, sample, index, stream=0, numel=2**34 - 1):
    """One element of a draw, from the module's description, in float64."""
    lanes = LANES if numel >= TILE else math.ceil(numel / 4)
    tile, inside = divmod(number, 4 * lanes)
    output, lane = divmod(inside, lanes)
    words = philox([tile * lanes + lane, index, step, sample + stream * 2**28], [seed & MASK, seed >> 32], 7)
    pair, second = divmod(output, 2)
    uniform, angle = (words[2 * pair] + 0.5) / 2**32, 2 * math.pi * words[2 * pair + 1] / 2**32
    return math.sqrt(-2 * math.log(uniform)) * (math.sin(angle) if second else math.cos(angle))


def part(shape, offset, full, coordinates):
    """A slice of a draw."""
    runs = noise.runs_of(coordinates["index"], shape, offset, full)
    others = {name: value for name, value in coordinates.items() if name != "index"}
    return noise.fill_runs(torch.empty(math.prod(shape)), runs, **others).view(shape)


def at(number, coordinates):
    """The same element from ``normal``, whatever its number: a slice of one element of a tensor of nearly 2**34."""
    return part([1], [number], [2**34 - 1], coordinates).item()


class TestBits:
    PI = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]

    @pytest.mark.parametrize(
        ("rounds", "counter", "key", "answer"),
        [
            (7, [0] * 4, [0] * 2, "5f6fb709 0d893f64 4f121f81 4f730a48"),
            (7, [MASK] * 4, [MASK] * 2, "5207ddc2 45165e59 4d8ee751 8c52f662"),
            (7, *PI, "4dfccaba 190a87f0 c47362ba b6b5242a"),
            (10, [0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
            (10, [MASK] * 4, [MASK] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
            (10, *PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
        ],
    )
    def test_known_answers_of_random123(self, rounds, counter, key, answer):
        expected = [int(word, 16) for word in answer.split()]
        assert philox(counter, key, rounds) == expected
        assert philox_inverse(expected, key, rounds) == counter
        words = torch.tensor(counter)[:, None].repeat(1, 3)
        memory = words[::2].contiguous(), words[1::2].contiguous(), torch.empty(2, 3, dtype=torch.int64)
        rounds_ = torch.from_numpy(constants(key[:1], key[1:], rounds))[..., 0]
        first, second, _ = philox_words(memory, rounds_)
        found = [(each[row] & MASK).tolist() for row in (rounds & 1, 1 - (rounds & 1)) for each in (first, second)]
        assert found == [[word] * 3 for word in expected]

    @pytest.mark.parametrize(
        "coordinates",
        [
            {"seed": 0, "step": 0, "sample": 0, "index": 0, "stream": 0},
            {"seed": 2**64 - 1, "step": 2**32 - 1, "sample": 2**28 - 1, "index": 2**32 - 1, "stream": 15},
            {"seed": 2**40 + 3, "step": 1000, "sample": 31, "index": 7, "stream": 1},
        ],
    )
    def test_every_element_is_the_documented_function_of_its_coordinates(self, coordinates):
        borders = [0, LANES, 2 * LANES, TILE, BLOCK, BLOCK + TILE, 2**33]
        for number in sorted({max(0, border + shift) for border in borders for shift in (-1, 0, 1)} | {2**34 - 2}):
            assert at(number, coordinates) == pytest.approx(element(number, **coordinates), rel=1e-5, abs=5e-6)

    @pytest.mark.parametrize("numel", [1, 2, 3, 4, 5, 650, LANES, TILE - 4, TILE - 1, TILE, TILE + 1])
    def test_every_element_of_a_small_tensor(self, numel):
        found = normal(**BASE, shape=(numel,))
        for number in {0, 1, numel // 4, numel // 2, 3 * numel // 4, numel - 1}:
            if number < numel:
                expected = element(number, **BASE, numel=numel)
                assert found[number].item() == pytest.approx(expected, rel=1e-5, abs=5e-6)

    @pytest.mark.parametrize(
        ("words", "expected"), [([0] * 4, [6.7637, 0.0, 6.7637, 0.0]), ([MASK] * 4, [0.0, 0.0, 0.0, 0.0])]
    )
    def test_extreme_words_give_finite_normals(self, words, expected):
        block, index, step, high = philox_inverse(words, [5, 6], 7)
        coordinates = {"seed": 5 + (6 << 32), "step": step, "sample": high % 2**28, "index": index}
        tile, lane = divmod(block, LANES)
        found = [at(tile * TILE + output * LANES + lane, {**coordinates, "stream": high >> 28}) for output in range(4)]
        assert found == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def draws():
    return normal(2024, 0, 0, 0, (NUM,)).double()


def moment_z(x, power):
    """How many standard errors the raw moment is from that of a standard normal."""
    exact, square = (math.prod(range(1, p, 2)) if p % 2 == 0 else 0 for p in (power, 2 * power))
    return ((x.pow(power).mean() - exact) * math.sqrt(x.numel() / (square - exact**2))).item()


def correlation_z(a, b):
    """Of the values and of the squares of standard normals."""
    a, b = a.double(), b.double()
    n = math.sqrt(a.numel())
    return (a * b).mean().item() * n, ((a.square() - 1) * (b.square() - 1)).mean().item() * n / 2


def assert_unrelated(a, b):
    assert max(map(abs, correlation_z(a, b))) < BOUND


class TestDistribution:
    @pytest.mark.parametrize("power", [1, 2, 3, 4, 5, 6])
    def test_moments(self, draws, power):
        assert abs(moment_z(draws, power)) < BOUND

    def test_kolmogorov_smirnov(self, draws):
        x = np.sort(draws.float().numpy()).astype(np.float64)
        ranks = np.arange(NUM) / NUM

        def distance(x):
            below = special.ndtr(x) - ranks
            return max(below.max(), 1 / NUM - below.min()) * math.sqrt(NUM)

        assert distance(x) < 1.95  # exceeded by chance once in a thousand
        assert distance(1.005 * x) > 1.95

    @pytest.mark.parametrize("sign", [-1, 1])
    @pytest.mark.parametrize("sigmas", [3, 4, 5])
    def test_tails(self, draws, sigmas, sign):
        expected = NUM * special.ndtr(-sigmas)
        assert abs((sign * draws > sigmas).sum().item() - expected) < BOUND * math.sqrt(expected)

    def test_moments_over_many_small_draws(self):
        """As in training: many steps, samples and parameters, few elements each."""
        x = torch.stack([normal(7, t, s, i, (50,)) for t in range(300) for s in range(3) for i in range(5)]).double()
        for power in (1, 2, 3, 4):
            assert abs(moment_z(x, power)) < BOUND
        for per_element in (x.mean(0) * math.sqrt(len(x)), (x.square().mean(0) - 1) * math.sqrt(len(x) / 2)):
            assert per_element.abs().max() < BOUND
        for lag in (1, 5, 15):  # the next parameter, sample, step
            assert_unrelated(x[:-lag], x[lag:])


class TestIndependence:
    @pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, LANES, 2 * LANES, 3 * LANES, TILE, 2 * TILE, BLOCK])
    def test_between_elements(self, draws, lag):
        assert_unrelated(draws[:-lag], draws[lag:])

    @pytest.mark.parametrize(("first", "second"), [*itertools.combinations(range(4), 2)])
    def test_between_the_outputs_of_one_counter(self, draws, first, second):
        outputs = draws[: NUM // TILE * TILE].view(-1, 4, LANES)
        assert_unrelated(outputs[:, first], outputs[:, second])

    @pytest.mark.parametrize(
        "other",
        [
            {"step": 11},
            {"step": 10 + 2**31},
            {"sample": 3},
            {"index": 4},
            {"seed": 2**63 + 12346},
            {"seed": 2**63 + 2**32 + 12345},
            {"seed": 12345},
            {"stream": 1},
            {"step": 3, "index": 10},
            {"step": 2, "sample": 10},
        ],
        ids=str,
    )
    def test_between_coordinates(self, other):
        a, b = (normal(**coordinates, shape=(10**6,)) for coordinates in (BASE, {**BASE, **other}))
        for lag in (0, 1, LANES):
            assert_unrelated(a[: len(a) - lag], b[lag:])


@st.composite
def slices(draw):
    """A shape and a slice of it: ``(full_shape, offset, shape)``; many tiles or few elements."""
    full = draw(st.lists(st.sampled_from([1, 2, 3, 24]), max_size=4))
    offset = [draw(st.integers(0, n - 1)) for n in full]
    return full, offset, [draw(st.integers(1, n - o)) for n, o in zip(full, offset, strict=True)]


def cut(tensor, offset, shape):
    return tensor[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]


@contextlib.contextmanager
def by_operations():
    """Inside, noise is drawn by PyTorch's operations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "_native", lambda _: None)
        yield


PATHS = [contextlib.nullcontext, by_operations]


def assert_by_operations(message):
    """Check that noise is drawn by PyTorch's operations, after a warning."""
    with pytest.warns(RuntimeWarning, match=message):
        found = normal(**BASE, shape=(10,))
    with by_operations():
        assert torch.equal(normal(**BASE, shape=(10,)), found)


def assert_slice(full, offset, shape):
    for path in PATHS:
        with path():
            found = part(shape, offset, full, BASE)
            assert torch.equal(found, cut(normal(**BASE, shape=full), offset, shape))


class TestSlices:
    @settings(deadline=None, max_examples=40)
    @given(slices())
    @example(([3, 1, 4], [0, 0, 1], [2, 1, 2]))
    @example(([3, 5, 4], [1, 2, 0], [1, 2, 4]))
    def test_a_slice_is_that_of_the_whole(self, case):
        assert_slice(*case)

    @pytest.mark.parametrize(
        ("full", "offset", "shape"),
        [
            ([BLOCK + TILE + 7], [BLOCK - 3], [9]),
            ([BLOCK + TILE + 7], [1], [BLOCK + TILE + 6]),
            ([700, 1000], [0, 999], [700, 1]),
            ([2, 2000, 200], [1, 0, 7], [1, 2000, 150]),
            ([2000, 500], [0, 7], [2000, 450]),
            ([3, BLOCK + TILE], [0, 5], [3, BLOCK]),
        ],
    )
    def test_across_blocks(self, full, offset, shape):
        assert_slice(full, offset, shape)

    @pytest.mark.parametrize("path", PATHS)
    def test_a_longer_draw_starts_with_the_shorter_one_from_a_tile_on(self, path):
        with path():
            long = normal(**BASE, shape=(BLOCK + TILE,))
            for length in (TILE - 3, TILE, TILE + 1, BLOCK - 1, BLOCK + 1):
                assert torch.equal(normal(**BASE, shape=(length,)), long[:length])

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("samples", [range(2**28 - 3, 2**28), [5, 0, 2]])
    def test_many_draws_at_once_are_the_single_ones(self, samples, path):
        indices = [2**32 - 1, 3, 0, 7, 8, 9, 2**31, 5]
        sizes = dict(zip(indices, [1, 5, LANES - 1, LANES, LANES + 1, TILE, TILE + 1, 3 * TILE - 5], strict=True))
        draws = [([2**64 - 2], [2**32 - 1], noise.TRAINING), ([1, 2**64 - 2, 3], [5, 5, 5], noise.POSTERIOR)]
        for seeds, steps, stream in draws:
            with path():
                many = noise.normal_many(seeds, steps, samples, sizes, stream=stream)
                for index, found in zip(indices, many.split_with_sizes(list(sizes.values()), dim=2), strict=True):
                    for p, s in itertools.product(range(len(seeds)), range(len(samples))):
                        single = normal(seeds[p], steps[p], samples[s], index, (sizes[index],), stream=stream)
                        assert torch.equal(found[p, s], single)

    @pytest.mark.parametrize("path", PATHS)
    def test_several_tensors_at_once_are_the_single_ones(self, path):
        """Of any dtypes and strides, and without any element."""
        outs = {
            2**32 - 1: torch.empty(3, 5),
            0: torch.empty(TILE + 1),
            7: torch.empty(0, 2),
            8: torch.empty(6, 7).T,
            3: torch.empty(noise.ALONE + 3, dtype=torch.float64),
            5: torch.nn.Parameter(torch.empty(2)),
            6: torch.empty(5, dtype=torch.bfloat16),
        }
        with path():
            noise.fill_many(outs, 2**64 - 2, 9, 2**28 - 1, stream=noise.POSTERIOR)
            for index, out in outs.items():
                single = normal(2**64 - 2, 9, 2**28 - 1, index, out.shape, stream=noise.POSTERIOR)
                assert torch.equal(out, single.to(out.dtype))

    @pytest.mark.parametrize("path", PATHS)
    def test_samples_of_one_plan_are_the_single_ones(self, path):
        """Also those drawn into tensors of other kinds than planned, and of several kinds."""
        shapes = {4: (3, 5), 0: (TILE + 1,), 7: (0, 2), 8: (6, 7)}
        with path():
            for dtype in (torch.float32, torch.float64):
                like = {index: torch.empty(shape, dtype=dtype) for index, shape in shapes.items()}
                draws = noise.Draws(like, 2**64 - 2, step=9, stream=noise.POSTERIOR)
                odd = [torch.empty(3, 5).bfloat16(), torch.empty(TILE + 1, device="meta"), torch.empty(0, 2)]
                for number, outs in enumerate([list(like.values()), [*odd, torch.empty(7, 6).T], [*odd, like[8]]]):
                    drawn = draws.draw(outs, number)
                    for index, value, out in zip(shapes, drawn, outs, strict=True):
                        single = normal(2**64 - 2, 9, number, index, shapes[index], stream=noise.POSTERIOR)
                        assert torch.equal(value, single.to(dtype))
                        assert (value is out) == (out.dtype == dtype and out.is_contiguous() and not out.is_meta)
        assert noise.Draws({}, 0).draw([], 0) == []


needs_compiler = pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")


@pytest.fixture
def anew(monkeypatch):
    """What is compiled is looked for again, before and after."""
    monkeypatch.setattr(native._Process, "has_warned", False)
    noise._compiled.cache_clear()
    yield
    noise._compiled.cache_clear()


class TestNative:
    """The compiled function beside PyTorch's operations; the words themselves have known answers above."""

    @needs_compiler
    @pytest.mark.parametrize("numel", [1, 5, LANES + 1, TILE, 4 * BLOCK + 77])
    def test_is_the_same_up_to_rounding(self, numel):
        found = normal(**BASE, shape=(numel,)).double()
        with by_operations():
            expected = normal(**BASE, shape=(numel,)).double()
        assert noise._native(torch.empty(0)) is not None
        assert ((found - expected).abs() <= 1e-6 + 1e-6 * expected.abs()).all()

    @needs_compiler
    def test_rounding_has_no_bias(self):
        found = normal(**BASE, shape=(BLOCK,)).double()
        with by_operations():
            expected = normal(**BASE, shape=(BLOCK,)).double()
        assert (found - expected).abs().mean() < 1e-7
        assert abs((found - expected).mean()) < 3e-8  # of float32's 2 pi, which the operations multiply angles by

    @needs_compiler
    def test_a_source_that_does_not_compile(self, monkeypatch, anew):
        monkeypatch.setattr(native, "read", lambda name: "this is no C++")
        message = "^the compiler failed: .*error.*: PyTorch's operations are used in place of compiled kernels"
        assert_by_operations(message)
        normal(**BASE, shape=(10,))  # it is said once: another warning would be an error

    @needs_compiler
    def test_a_function_that_gives_other_numbers(self, monkeypatch, anew):
        source = native.read("normal.cpp")
        assert "0x9E3779B9u" in source
        monkeypatch.setattr(native, "read", lambda name: source.replace("0x9E3779B9u", "0x9E3779BBu"))
        message = "^noise is drawn without its compiled function, which gives other numbers on this machine$"
        assert_by_operations(message)

    def test_without_a_compiler_there_is_a_warning(self, monkeypatch, anew):
        monkeypatch.setattr(native, "_compiler", lambda: None)
        assert_by_operations(r"^there is no C\+\+ compiler .*: PyTorch's operations .* take several times as long")


class TestResult:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("layout", ["transposed", "every second column", "permuted", "part of rows"])
    def test_out_of_any_strides(self, layout, dtype):
        storage = torch.full((100, 100, 10), -7.0, dtype=dtype)
        out = {
            "transposed": storage[:80, :10, :4].permute(2, 1, 0),
            "every second column": storage.view(10, 10, 1000)[:4, :, 1:161:2],
            "permuted": storage[:10, :80, :4].permute(2, 0, 1),
            "part of rows": storage.view(10, 10, 1000)[:4, :, 100:180],
        }[layout]
        noise.fill_many({3: out}, 5, 10, 2)
        assert torch.equal(out, normal(5, 10, 2, 3, (4, 10, 80)).to(dtype))
        assert (storage == -7.0).sum() >= storage.numel() - out.numel()

    def test_out_may_require_gradients(self):
        out = torch.empty(5, 6, requires_grad=True)
        noise.fill_many({3: out}, 5, 10, 2)
        assert torch.equal(out, normal(5, 10, 2, 3, (5, 6)))
        assert (out.requires_grad, out.grad_fn) == (True, None)

    @pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5)])
    def test_empty(self, shape):
        assert normal(**BASE, shape=shape).shape == shape

    def test_global_generators_are_neither_read_nor_moved(self):
        found = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            found.append(normal(**BASE, shape=(100,)))
            assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(*found)

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("numel", [noise.ALONE - 1, noise.ALONE + 1, BLOCK + 12345])
    def test_number_of_threads_does_not_matter(self, numel, path, set_threads):
        found = []
        for threads in (1, 2, 4):
            set_threads(threads)
            with path():
                found.append(normal(**BASE, shape=(numel,)))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])

    @pytest.mark.parametrize("kind", [np.int64, np.uint8])
    def test_coordinates_may_be_numpy_integers(self, kind):
        expected = normal(9, 10, 11, 12, (5000,), stream=1)
        assert torch.equal(normal(*map(kind, (9, 10, 11, 12)), (5000,), stream=kind(1)), expected)


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "bits"), [("seed", 64), ("step", 32), ("sample", 28), ("index", 32), ("stream", 4)]
    )
    def test_coordinates_out_of_range(self, name, bits):
        for value in (-1, 2**bits, np.int64(-1), 1.0, "1", None, torch.tensor(1)):
            with pytest.raises(ValueError, match=rf"^{name} must be an integer in \[0, 2\*\*{bits}\), got ") as error:
                normal(**{**BASE, name: value}, shape=(2,))
            assert str(error.value).endswith(f"got {value!r}")
        normal(**{**BASE, name: 2**bits - 1}, shape=(2,))

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            (([0, -1], [0, 0], [0], {0: 1}), "seed"),
            (([0, 0], [0, -1], [0], {0: 1}), "step"),
            (([0], [0], [0, 2**32], {0: 1}), "sample"),
            (([0], [0], [0], {2**32: 1}), "index"),
            (([0], [0], [0, -1], {0: 1}), "sample"),
            (([0], [0], [0], {0: 1, -1: 1}), "index"),
        ],
    )
    def test_coordinates_of_many_draws_out_of_range(self, arguments, name):
        with pytest.raises(ValueError, match=rf"^{name} must be an integer in .*, got (-1|4294967296)$"):
            noise.normal_many(*arguments)

    def test_coordinates_of_a_plan_out_of_range(self):
        for like, seed, message in (({0: torch.empty(2)}, -1, "seed"), ({2**32: torch.empty(2)}, 0, "index")):
            with pytest.raises(ValueError, match=f"^{message} must be an integer in"):
                noise.Draws(like, seed)
        with pytest.raises(ValueError, match=r"^sample must be an integer in .*, got -1$"):
            noise.Draws({0: torch.empty(2)}, 0).draw([torch.empty(2)], -1)

    @pytest.mark.parametrize("index", [-1, 2**32])
    def test_an_index_of_several_tensors_or_runs_out_of_range(self, index):
        coordinates, message = {"seed": 0, "step": 0, "sample": 0}, "index must be an integer in"
        with pytest.raises(ValueError, match=message):
            noise.fill_many({0: torch.zeros(2), index: torch.zeros(2)}, **coordinates)
        with pytest.raises(ValueError, match=message):
            noise.fill_runs(torch.zeros(4), [(0, 0, 2, 2), (index, 0, 2, 2)], **coordinates)
