"""What the forecast counts in a program, and that it can compile one."""

from experiments.benchmarks.gpu_forecast import (
    count_bytes,
    list_kernels,
    parse_module,
)

# A program in the compiler's grammar: a loop of three, two fusions, a convolution, an exchange.
HLO = """HloModule jit_train_step, is_scheduled=true

%fused_add (param_0: f32[8,4], param_1: f32[100,4]) -> f32[8,4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  %param_1 = f32[100,4]{1,0} parameter(1)
  %slice.1 = f32[8,4]{1,0} slice(%param_1), slice={[0:8], [0:4]}
  ROOT %add.1 = f32[8,4]{1,0} add(%param_0, %slice.1)
}

%body (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %one = s32[] constant(1)
  ROOT %add.2 = s32[] add(%p, %one)
}

%condition (p.1: s32[]) -> pred[] {
  %p.1 = s32[] parameter(0)
  %limit = s32[] constant(3)
  ROOT %lt = pred[] compare(%p.1, %limit), direction=LT
}

ENTRY %main (x: f32[8,4], y: f32[100,4], n: s32[], i: bf16[2,6,6,3], k: bf16[5,3,3,3]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %y = f32[100,4]{1,0} parameter(1)
  %n = s32[] parameter(2)
  %i = bf16[2,6,6,3]{3,2,1,0} parameter(3)
  %k = bf16[5,3,3,3]{3,2,1,0} parameter(4)
  %while.1 = s32[] while(%n), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %conv = (bf16[2,6,6,5]{3,2,1,0}, u8[1024]{0}) custom-call(%i, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
  %fusion.1 = f32[8,4]{1,0} fusion(%x, %y), kind=kLoop, calls=%fused_add
  %all-reduce-start = f32[8,4]{1,0} all-reduce-start(%fusion.1), replica_groups={{0,1}}, to_apply=%body
  ROOT %all-reduce-done = f32[8,4]{1,0} all-reduce-done(%all-reduce-start)
}
"""  # noqa: E501


def test_everything_that_runs_is_a_kernel_with_its_time_by_memory_and_arithmetic():
    kernels = {kernel.name: kernel for kernel in list_kernels(*parse_module(HLO))}
    repeats = {name: kernel.repeats for name, kernel in kernels.items()}
    expected = {"add.2": 3, "lt": 3, "conv": 1, "fusion.1": 1, "all-reduce-start": 1}
    assert repeats == expected
    kinds = {name: kernel.kind for name, kernel in kernels.items() if kernel.kind != "other"}
    assert kinds == {"conv": "convolution", "all-reduce-start": "all-reduce"}
    assert count_bytes("(f32[2,3]{1,0}, pred[7]{0}, s32[])") == 24 + 7 + 4
    assert kernels["fusion.1"].bytes_moved == 3 * 8 * 4 * 4  # x, the slice of y, the result.
    conv = kernels["conv"]
    # Without cuDNN's scratch memory.
    assert conv.bytes_moved == 2 * (2 * 6 * 6 * 3 + 5 * 3 * 3 * 3 + 2 * 6 * 6 * 5)
    assert (conv.flops, conv.unit) == (2 * (2 * 6 * 6 * 5) * (3 * 3 * 3), "bf16")
    assert conv.compute_seconds("H100") == max(conv.bytes_moved / 3.35e12, conv.flops / 989e12)
    assert kernels["add.2"].compute_seconds("H200") == 3 * (4 + 4 + 4) / 4.8e12
