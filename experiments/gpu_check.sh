#!/usr/bin/env bash
# What only a GPU can tell, in three parts that each fit into ten minutes of one.
#
#   PART=A SIZE=full OUT=results DATA=cifar10.npz bash experiments/gpu_check.sh
#
# PART  A: the bfloat16 step, its profile, training for the rest of the time.
#       B: whether a step there equals the CPU's; synthetic input, float32; the authors' PyTorch step.
#       C: frozen features, all other variants of the step, and more training.
# SIZE  full, or small: a rehearsal of every command that takes seconds on a CPU.
# OUT   where results go, one file per measurement, written as soon as there is something to write.
# DATA  an .npz of CIFAR-10 as in the README; without it the digits of scikit-learn.
# PEER  a checkout of the authors' PyTorch code; without it PyTorch is not timed.
# LIMIT seconds for the part, PYTHON the interpreter.
#
# A measurement that fails or runs out of time is reported in OUT/PART.log, and the next one starts.
# The exit code is 1 if any failed or was passed over; one stopped by the clock keeps its results.
set -uo pipefail
cd "$(dirname "$0")/.."
PART=${PART:?PART is A, B or C}
SIZE=${SIZE:-full}
OUT=${OUT:-runs/gpu_check}
LIMIT=${LIMIT:-540}
PYTHON=${PYTHON:-python3}
LOG="$OUT/$PART.log"
FAILED=0
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1

if [ "$SIZE" = small ]; then
  MODEL="--config.model.depth=10 --config.model.width=1 --config.batch_size=4 --config.mu=2"
  MODEL="$MODEL --config.data.image_size=8 --config.data.cutout=3"
  MODEL="$MODEL --config.data.randaugment_ops=0" # It takes long to compile.
  COMPARED="$MODEL" STEPS=2 BLOCKS=2 TRAINING_STEPS=4 IMAGES=64 VECTORS=2000
else
  MODEL="--config.mu=7"
  COMPARED="--config.batch_size=16 --config.mu=4" STEPS=20 BLOCKS=5 TRAINING_STEPS=30000 IMAGES=4096 VECTORS=1000000
fi

report() {
  echo "[$SECONDS s] $*" | tee -a "$LOG"
}

# measure NAME COMMAND...: runs it for as long as the part still has, and notes how it ended. The
# last seconds are left for the reports and for a run to save itself when it is asked to stop.
measure() {
  local name=$1 left=$((LIMIT - 20 - SECONDS)) status=0 started=$SECONDS
  shift
  if [ "$left" -lt 5 ]; then
    report "$name: passed over, no time left"
    FAILED=1
    return
  fi
  report "$name: $*"
  timeout --kill-after=15 "$left" "$@" >>"$LOG" 2>&1 || status=$?
  # 137 is a kill: by the clock, if the command ignored its first signal, or for want of memory.
  if [ "$status" = 137 ] && [ $((SECONDS - started)) -ge "$left" ]; then status=124; fi
  case $status in
    0) report "$name: done" ;;
    124) report "$name: stopped by the clock after $left s" ;;
    *)
      report "$name: failed with code $status: $(tail -n 1 "$LOG")"
      FAILED=1
      ;;
  esac
}

step() {
  local name=$1 variants=$2
  shift 2
  measure "$name" "$PYTHON" -m experiments.benchmarks.step --config configs/cifar10.py $MODEL \
    --variants "$variants" --steps "$STEPS" --blocks "$BLOCKS" --output "$OUT/$name.md" "$@"
}

# Resumes from the last part's checkpoint, as long as its folder in runs/ is there.
train() {
  local config=configs/digits.py:40 data="" run=runs/gpu_check-$SIZE
  if [ -n "${DATA:-}" ]; then
    config=configs/cifar10.py:250 data="--config.data.data_dir=$DATA"
  fi
  measure "$PART-training" "$PYTHON" main.py --config "$config" --workdir "$run" $data $MODEL \
    --config.data.pipeline=device --config.model.dtype=bfloat16 \
    --config.num_steps="$TRAINING_STEPS"
  for file in metrics.jsonl result.json; do
    if [ -f "$run/$file" ]; then cp "$run/$file" "$OUT/$PART-$file"; fi
  done
}

part_a() {
  step A-step "bfloat16,unrolled,device"
  measure A-profile "$PYTHON" -m experiments.benchmarks.profile_step --config configs/cifar10.py $MODEL \
    --variant bfloat16,unrolled,device --output "$OUT/A-profile.md" --runs runs/gpu_check
  train
}

part_b() {
  measure B-compare "$PYTHON" -m experiments.benchmarks.compare_devices --config configs/cifar10.py $COMPARED
  step B-step "bfloat16,unrolled,synthetic float32,unrolled,synthetic highest,unrolled,synthetic"
  if [ -n "${PEER:-}" ]; then
    # In a process of its own, in which JAX leaves the GPU's memory to PyTorch.
    export XLA_PYTHON_CLIENT_PREALLOCATE=false
    step B-peer "" --peer "$PEER" --peer_forms "released tuned"
  fi
}

# Frozen features, and neighbors among as many vectors as a large folder has images.
features() {
  measure "$PART-features" "$PYTHON" -m experiments.benchmarks.features --images "$IMAGES" \
    --vectors "$VECTORS" --output "$OUT/$PART-features.md"
}

part_c() {
  local variants="bfloat16,unrolled,synthetic bfloat16,unrolled,synthetic,8"
  variants="$variants bfloat16,vmap,synthetic bfloat16,separate,synthetic bfloat16,remat,synthetic"
  features
  step C-step "$variants float32,vmap,synthetic float32,unrolled,device"
  train
}

: >"$LOG"
report "part $PART, $SIZE, $(uname -n), $($PYTHON --version 2>&1)"
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader \
  >>"$LOG" 2>&1 || report "no nvidia-smi"
case $PART in
  A) part_a ;;
  B) part_b ;;
  C) part_c ;;
  *) report "There is no part $PART: choose A, B or C" && exit 2 ;;
esac
report "part $PART ends"
exit $FAILED
