#!/usr/bin/env bash
# What only a GPU can tell, in three parts.
#
#   PART=A SIZE=full OUT=results DATA=cifar10.npz bash experiments/gpu_check.sh
#
# PART   A: speed: variants of the step, its profile, the authors' PyTorch step, vision transformers.
#        B: accuracy: agreement with the CPU; four trainings on CIFAR-10 at once; evaluation on both.
#        C: photographs: frozen features, the instant classifier, training.
# SIZE   full, or small: a rehearsal of every command that takes a minute or two on a CPU.
# OUT    where results go, one file per measurement, written as soon as there is something to write.
# DATA   CIFAR-10: an .npz as in the README, or a tar of SPLIT/CLASS/FILE. Without it, the digits.
# PEER   a checkout of the authors' PyTorch code; without it PyTorch is not timed.
# PHOTOS a folder of photographs with train/CLASS and test/CLASS; without it part C has none.
# LIMIT  seconds for the part, PYTHON the interpreter.
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
RUNS=${RUNS:-runs/gpu_check-$SIZE}
THREADS=$((($(getconf _NPROCESSORS_ONLN) + 3) / 4)) # To compile a variant takes several cores.
LOG="$OUT/$PART.log"
FAILED=0
mkdir -p "$OUT" "$RUNS"
export PYTHONUNBUFFERED=1

if [ "$SIZE" = small ]; then
  MODEL="--config.model.depth=10 --config.model.width=1 --config.batch_size=4 --config.mu=2"
  MODEL="$MODEL --config.data.image_size=8 --config.data.cutout=3"
  MODEL="$MODEL --config.data.randaugment_ops=0" # It takes long to compile.
  COMPARED="$MODEL" STEPS=2 BLOCKS=2 IMAGES=64 VECTORS=2000 SECONDS_OF_TRAINING=40
  TRANSFORMER="--config.model.name=vit_tiny --config.data.image_size=32 --config.batch_size=4"
  TRAINING="$MODEL --config.data.image_size=32 --config.num_steps=4"
  LABELS=50 PHOTO_TRAINING="--steps 2 --size 64 --config.batch_size=2 --config.mu=1"
else
  MODEL="--config.mu=7"
  COMPARED="--config.batch_size=16 --config.mu=4" STEPS=20 BLOCKS=5 IMAGES=8192 VECTORS=300000
  TRANSFORMER="--config.model.name=vit_small --config.data.image_size=224 --config.batch_size=16"
  TRAINING="$MODEL --config.log_every=100 --config.eval_every=1000"
  SECONDS_OF_TRAINING=${SECONDS_OF_TRAINING:-240}
  LABELS=50 PHOTO_TRAINING="--minutes 2"
fi
TRANSFORMER="$TRANSFORMER --config.mu=3"

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
  if [ -n "${AT_MOST:-}" ] && [ "$left" -gt "$AT_MOST" ]; then left=$AT_MOST; fi
  report "$name: $*"
  timeout --kill-after=15 "$left" "$@" >"$OUT/$name.log" 2>&1 || status=$?
  # 137 is a kill: by the clock, if the command ignored its first signal, or for want of memory.
  if [ "$status" = 137 ] && [ $((SECONDS - started)) -ge "$left" ]; then status=124; fi
  case $status in
    0) report "$name: done in $((SECONDS - started)) s" ;;
    124) report "$name: stopped by the clock after $left s" ;;
    *)
      report "$name: failed with code $status: $(tail -n 1 "$OUT/$name.log")"
      FAILED=1
      ;;
  esac
}

step() {
  local name=$1 variants=$2
  shift 2
  measure "$name" "$PYTHON" -m experiments.benchmarks.step --config configs/cifar10.py \
    --variants "$variants" --steps "$STEPS" --blocks "$BLOCKS" --threads "$THREADS" \
    --output "$OUT/$name.md" "$@"
}

part_a() {
  step A-step "bfloat16,unrolled,device bfloat16,separate,device bfloat16,unrolled,synthetic" $MODEL
  # Compiled programs are kept, so that this one is not compiled again.
  measure A-profile "$PYTHON" -m experiments.benchmarks.profile_step --config configs/cifar10.py \
    $MODEL --variant bfloat16,unrolled,device --output "$OUT/A-profile.md" --runs "$RUNS"
  find "$RUNS/profile" -name "*.xplane.pb" -exec cp {} "$OUT/A-profile.xplane.pb" \;
  if [ -n "${PEER:-}" ]; then
    # In a process of its own, in which JAX leaves the GPU's memory to PyTorch.
    XLA_PYTHON_CLIENT_PREALLOCATE=false \
      step A-peer "" $MODEL --peer "$PEER" --peer_forms "released tuned"
  fi
  step A-more "bfloat16,vmap,synthetic float32,unrolled,synthetic bfloat16,unrolled,synthetic,8" \
    $MODEL
  step A-transformer "bfloat16,unrolled,synthetic bfloat16,remat,synthetic" $TRANSFORMER
  # The same without cuDNN's attention.
  measure A-attention "$PYTHON" -c "
import jax
from cls_jax.models import vit
vit.attend = jax.nn.dot_product_attention
from experiments.benchmarks import step
from experiments.paper import grid
grid.run_main(step.main)" --config configs/cifar10.py --variants bfloat16,unrolled,synthetic \
    --steps "$STEPS" --blocks "$BLOCKS" --output "$OUT/A-attention.md" $TRANSFORMER
}

# All at once on one device, whose memory they share. Each is asked to stop in time, and saves.
train_on_cifar() {
  local method labels config=configs/cifar10.py data=""
  if [ -n "${DATA:-}" ]; then data="--config.data.data_dir=$DATA"; else config=configs/digits.py; fi
  export XLA_PYTHON_CLIENT_PREALLOCATE=false
  for labels in 250 40; do
    for method in cls fixmatch; do
      AT_MOST=$SECONDS_OF_TRAINING measure "B-$method-$labels" \
        "$PYTHON" main.py --config "$config:$labels,$method" --workdir "$RUNS/$method-$labels" \
        $data $TRAINING --config.data.pipeline=device --config.model.dtype=bfloat16 &
    done
  done
  wait
  for run in "$RUNS"/*-250 "$RUNS"/*-40; do
    for file in metrics.jsonl result.json; do
      if [ -f "$run/$file" ]; then cp "$run/$file" "$OUT/B-$(basename "$run")-$file"; fi
    done
  done
}

part_b() {
  if [ -n "${DATA:-}" ] && [ "${DATA%.npz}" = "$DATA" ]; then
    measure B-pack "$PYTHON" -m experiments.benchmarks.pack_archive "$DATA" "$RUNS/cifar10.npz"
    DATA="$RUNS/cifar10.npz"
  fi
  train_on_cifar
  measure B-eval "$PYTHON" main.py --mode eval --workdir "$RUNS/cls-250"
  JAX_PLATFORMS=cpu measure B-eval-cpu "$PYTHON" main.py --mode eval --workdir "$RUNS/cls-250"
  measure B-compare "$PYTHON" -m experiments.benchmarks.compare_devices --config configs/cifar10.py \
    $COMPARED
}

# NAME COMMAND...: a command of cls-jax with the photographs.
photos() {
  local name=$1
  shift
  measure "$name" "$PYTHON" -m cls_jax "$@"
}

part_c() {
  measure C-features "$PYTHON" -m experiments.benchmarks.features --images "$IMAGES" \
    --vectors "$VECTORS" --output "$OUT/C-features.md"
  if [ -n "${PHOTOS:-}" ]; then
    local labels="--config.num_labels=$LABELS" other="$RUNS/other_cache"
    photos C-instant train "$PHOTOS" --instant --workdir "$RUNS/instant" $labels
    # TF32 against float32, with features of its own.
    XDG_CACHE_HOME=$other JAX_DEFAULT_MATMUL_PRECISION=highest \
      photos C-instant-highest train "$PHOTOS" --instant --workdir "$RUNS/instant_highest" $labels
    photos C-predict predict "$RUNS/instant" "$PHOTOS/test" --output "$OUT/C-default.csv"
    XDG_CACHE_HOME=$other JAX_DEFAULT_MATMUL_PRECISION=highest \
      photos C-predict-highest predict "$RUNS/instant_highest" "$PHOTOS/test" \
      --output "$OUT/C-highest.csv"
    photos C-train train "$PHOTOS" --workdir "$RUNS/photos" $labels $PHOTO_TRAINING &
    sleep 30 # A second process beside it, as a user would start one.
    photos C-beside predict "$RUNS/instant" "$PHOTOS/test" --output "$OUT/C-beside.csv"
    wait
    cp "$RUNS/photos/metrics.jsonl" "$OUT/C-metrics.jsonl"
    cp "$RUNS/photos/result.json" "$OUT/C-result.json"
  fi
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
