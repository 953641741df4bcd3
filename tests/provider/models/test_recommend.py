from __future__ import annotations

import pytest

from provider.models.catalogue import DEMO_MODEL, catalogue
from provider.models.recommend import (
    BANDWIDTH,
    Recommendation,
    bandwidth_gb_s,
    machine_gb,
    recommend,
    usable_gb,
)

GB = 2**30


def on(memory_gb: int, chip: str | None, cores: int | None = None) -> dict[str, Recommendation]:
    found = recommend(catalogue().values(), memory_bytes=memory_gb * GB, chip=chip, gpu_cores=cores)
    return {each.id.removeprefix("mlx-community/"): each for each in found}


def test_what_fits_comes_first_and_the_largest_before_smaller_ones() -> None:
    found = list(on(16, "Apple M2").values())
    fits = [each.fits for each in found]
    assert fits == sorted(fits, reverse=True)
    sizes = [each.weights_gb for each in found if each.fits]
    assert sizes == sorted(sizes, reverse=True)
    assert len(found) == len(catalogue()) - 1
    assert DEMO_MODEL not in on(16, None)


@pytest.mark.parametrize(
    ("memory", "largest"),
    [
        (8, "Llama-3.2-3B-Instruct-4bit"),
        (16, "Qwen3-8B-4bit"),
        (24, "gpt-oss-20b-MXFP4-Q8"),
        (36, "Qwen3.5-35B-A3B-4bit"),
        (96, "gpt-oss-120b-4bit"),
    ],
)
def test_the_largest_that_fits(memory: int, largest: str) -> None:
    assert next(iter(on(memory, "Apple M4"))) == largest


def test_speed_follows_bandwidth_and_the_bytes_a_token_reads() -> None:
    slow, fast = on(64, "Apple M1")["Qwen3-8B-4bit"], on(64, "Apple M1 Max")["Qwen3-8B-4bit"]
    assert slow.tokens_per_s == pytest.approx(68 * 0.65 / 4.6, abs=0.1)
    assert fast.tokens_per_s == pytest.approx(slow.tokens_per_s * 400 / 68, rel=0.02)
    experts = on(64, "Apple M1 Max")["Qwen3-30B-A3B-Instruct-2507-4bit"].tokens_per_s
    dense = on(64, "Apple M1 Max")["Qwen3-32B-4bit"].tokens_per_s
    assert experts is not None
    assert dense is not None
    assert experts > 5 * dense


def test_an_unknown_chip_has_no_speed() -> None:
    assert on(64, "AMD EPYC")["Qwen3-8B-4bit"].tokens_per_s is None
    assert bandwidth_gb_s(None, None) is None


@pytest.mark.parametrize(("cores", "speed"), [(32, 410), (40, 546), (None, 410)])
def test_one_chip_may_come_in_two_kinds(cores: int | None, speed: int) -> None:
    assert bandwidth_gb_s("Apple M4 Max", cores) == speed


def test_every_chip_has_a_speed_for_any_number_of_cores() -> None:
    for chip in BANDWIDTH:
        assert bandwidth_gb_s(chip, 80)


def test_the_smallest_machine_for_it_is_told() -> None:
    found = on(8, None)
    assert found["Qwen3-8B-4bit"].machine_gb == pytest.approx(6.6 * 1.5, abs=0.1)
    assert found["gpt-oss-120b-4bit"].machine_gb == pytest.approx(67 / 0.75, abs=0.1)
    for needed in (1.0, 40.0, 42.7, 43.0, 47.9, 48.1, 90.0):
        assert usable_gb(int(machine_gb(needed) * GB) + GB) >= needed


def test_the_system_keeps_its_share() -> None:
    assert usable_gb(24 * GB) == pytest.approx(16)
    assert usable_gb(128 * GB) == pytest.approx(96)
