"""The Triton kernels compile for GPUs that are not here: within shared memory, on tensor cores, with few spills."""

import pytest

pytest.importorskip("triton")

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes that a block may have
MOST_STACK = 640  # bytes of a thread's registers that spill, in any configuration left to the autotuner
LEAST_STACK = {False: 128, True: 400}  # in the best one of a case, without and with keys of any norms


def check(kernels):
    cases = {}
    for k in kernels:
        assert k["shared_memory"] <= SHARED_MEMORY[k["arch"]], k
        assert k["stack"] <= MOST_STACK, k
        if k["kernel"] != "_delta_kernel":
            assert k["products"] > 0, k
            case = tuple(k[name] for name in ("kernel", "arch", "D", "window", "biased", "shared"))
            cases[case] = min(k["stack"], cases.get(case, MOST_STACK))
    assert all(stack <= LEAST_STACK[case[4]] for case, stack in cases.items()), cases
    return cases


def test_a_sample_for_sm_90(json_lines):
    assert len(check(json_lines("ahead_of_time.py", "90", "128", "sample"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["80", "90", "100"])
def test_every_configuration(json_lines, arch):
    assert len(check(json_lines("ahead_of_time.py", arch, "64,128"))) == 2 * 2 * 8
