#!/usr/bin/env bash
# What only a GPU can tell, in four parts.
#
#   PART=A SIZE=full OUT=results DATA=cifar10.npz bash experiments/gpu_check.sh
#
# PART   A: speed: variants of the step, its profile, the authors' PyTorch step, vision transformers,
#           agreement with the CPU and, where TensorFlow is installed, the tf.data pipeline.
#        B: the paper's experiment, whole: a training on CIFAR-10 whose last step falls in second 530
#           of 600, its evaluations included.
#        C: photographs: the instant classifier, training to its end, frozen features.
#        D: the first minutes with photographs: cold and warm commands, what they compile, several at
#           once, a planned training, the step beside PyTorch's, depthwise convolutions.
# SIZE   full, or small: a rehearsal of every command, some minutes a part on a CPU.
# OUT    where results go, one file per measurement, written as soon as there is something to write.
# DATA   CIFAR-10: an .npz as in the README, or a tar of SPLIT/CLASS/FILE. Without it, the digits.
# TRAINING  what part B trains: METHOD-LABELS or METHOD-LABELS-SEED.
# FROM   results of an earlier part B, whose training is resumed. It comes in parts of 15 MB.
# PEER   a checkout of the authors' PyTorch code; without it PyTorch is not timed.
# PHOTOS a folder of photographs with train/CLASS and test/CLASS; without it parts C and D have none.
# LIMIT  seconds for the part, PYTHON the interpreter.
# METHOD, MINUTES  of the training of part C.
# ONLY   names of the part's measurements, as in "C-instant C-train"; without it, all of them.
#
# Where a device is lent for fifteen minutes at a time, of which a command has ten:
#   PART=B DATA=ARCHIVE                           PART=B DATA=ARCHIVE LIMIT=240 TRAINING=fixmatch-250
#   PART=B DATA=ARCHIVE TRAINING=cls-40           PART=B DATA=ARCHIVE LIMIT=240 TRAINING=cls-250-1
#   PART=C LIMIT=600 ONLY="C-instant C-train"     PART=C LIMIT=240 ONLY=C-train METHOD=cls MINUTES=2
# `python -m experiments.paper.cifar10_page OUT...` then writes the page about part B.
#
# A measurement that fails or runs out of time is reported in OUT/PART.log, and the next one starts.
# The exit code is 1 if any failed or was passed over; one stopped by the clock keeps its results.
set -uo pipefail
cd "$(dirname "$0")/.."
PART=${PART:?PART is A, B, C or D}
SIZE=${SIZE:-full}
OUT=${OUT:-runs/gpu_check}
PYTHON=${PYTHON:-python3}
RUNS=${RUNS:-runs/gpu_check-$SIZE}
THREADS=$((($(getconf _NPROCESSORS_ONLN) + 3) / 4)) # To compile a variant takes several cores.
LOG="$OUT/$PART.log"
HAS_PEER="import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ('torch', 'timm'))))"
HAS_TENSORFLOW="import importlib.util, sys; sys.exit(not importlib.util.find_spec('tensorflow'))"
mkdir -p "$OUT" "$RUNS"
export PYTHONUNBUFFERED=1
STARTED=$(date +%s)

if [ "$SIZE" = small ]; then
  MODEL="--config.model.depth=10 --config.model.width=1 --config.batch_size=4 --config.mu=2"
  MODEL="$MODEL --config.data.image_size=8 --config.data.cutout=3"
  MODEL="$MODEL --config.data.randaugment_ops=0" # It takes long to compile.
  COMPARED="$MODEL" STEPS=2 BLOCKS=2 IMAGES=64 VECTORS=2000 TIMED=10
  TRANSFORMER="--config.model.name=vit_tiny --config.data.image_size=32 --config.batch_size=4"
  DEPTHWISE="--images 1 --types float32 --repeat 1"
  PHOTO_STEP="--config.data.image_size=32 --config.batch_size=2 --config.mu=1"
  TORCH_STEP="--size 32 --batch_size 2 --mu 1 --steps 1 --forms written"
  LABELS=50 PHOTO_TRAINING="--steps 2 --size 64 --config.batch_size=2 --config.mu=1"
  LIMIT=${LIMIT:-$([ "$PART" = B ] && echo 120 || echo 1800)}
  export JAX_DISABLE_MOST_OPTIMIZATIONS=1 # Nearly all of the time would be compilation.
else
  MODEL="--config.mu=7"
  COMPARED="--config.batch_size=16 --config.mu=4" STEPS=20 BLOCKS=5 IMAGES=8192 VECTORS=300000 TIMED=200
  TRANSFORMER="--config.model.name=vit_small --config.data.image_size=224 --config.batch_size=16"
  DEPTHWISE="" PHOTO_STEP="--config.data.image_size=224 --config.batch_size=32 --config.mu=7"
  TORCH_STEP="--size 224 --batch_size 32 --mu 7"
  LABELS=50 PHOTO_TRAINING="--minutes ${MINUTES:-8}"
  LIMIT=${LIMIT:-$([ "$PART" = B ] && echo 600 || echo 540)}
fi
PHOTO_TRAINING="$PHOTO_TRAINING --method ${METHOD:-fixmatch}"
TRANSFORMER="$TRANSFORMER --config.mu=3"
# As planned for photos, but without weights.
PHOTO_STEP="$PHOTO_STEP --methods fixmatch --config.model.name=efficientnet_lite0"
PHOTO_STEP="$PHOTO_STEP --config.model.bn_frozen=True --config.method.weak_pass=fast"
PHOTO_STEP="$PHOTO_STEP --config.optimizer.name=adamw --config.optimizer.learning_rate=3e-4"
PHOTO_STEP="$PHOTO_STEP --config.optimizer.frozen_stages=4"

report() {
  echo "[$SECONDS s] $*" | tee -a "$LOG"
}

# measure NAME COMMAND...: runs it for as long as the part still has, and notes how it ended. The
# last seconds are left for the reports and for a run to save itself when it is asked to stop.
measure() {
  local name=$1 left=$((LIMIT - LIMIT / 30 - SECONDS)) status=0 started=$SECONDS
  shift
  case " ${ONLY:-$name} " in
    *" $name "*) ;;
    *) return ;;
  esac
  if [ "$left" -lt 5 ]; then
    report "$name: passed over, no time left"
    return
  fi
  report "$name: $*"
  timeout --kill-after=15 "$left" "$@" >"$OUT/$name.log" 2>&1 || status=$?
  # 137 is a kill: by the clock, if the command ignored its first signal, or for want of memory.
  if [ "$status" = 137 ] && [ $((SECONDS - started)) -ge "$left" ]; then status=124; fi
  case $status in
    0) report "$name: done in $((SECONDS - started)) s" ;;
    124) report "$name: stopped by the clock after $left s" ;;
    *) report "$name: failed with code $status: $(tail -n 1 "$OUT/$name.log")" ;;
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
  find "$RUNS" -name "*.xplane.pb" -exec cp {} "$OUT/A-profile.xplane.pb" \;
  if [ -n "${PEER:-}" ]; then
    # In a process of its own, in which JAX leaves the GPU's memory to PyTorch.
    XLA_PYTHON_CLIENT_PREALLOCATE=false \
      step A-peer "" $MODEL --peer "$PEER" --peer_forms "released tuned"
  fi
  step A-more "float32,unrolled,synthetic bfloat16,unrolled,synthetic,8" \
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
  measure A-compare "$PYTHON" -m experiments.benchmarks.compare_devices --config configs/cifar10.py \
    $COMPARED
  # To import it takes long.
  if "$PYTHON" -c "$HAS_TENSORFLOW"; then
    step A-tfdata "bfloat16,unrolled,tfdata bfloat16,unrolled,device" $MODEL
  else
    report "A-tfdata: left out, TensorFlow is not installed"
  fi
}

# keep RUN NAME: what a run measured.
keep() {
  local file
  for file in metrics.jsonl result.json; do
    if [ -f "$1/$file" ]; then cp "$1/$file" "$OUT/$2-$file"; fi
  done
}

# All of it is in RUNS/B-TRAINING, which comes back in parts, whole or resumable.
part_b() {
  local method labels seed name=B-${TRAINING:-cls-250} until=$((STARTED + LIMIT * 53 / 60))
  local options="--config configs/digits.py"
  IFS=- read -r method labels seed <<<"${name#B-}"
  if [ -n "${DATA:-}" ] && [ "${DATA%.npz}" = "$DATA" ]; then
    measure B-pack "$PYTHON" -m experiments.benchmarks.pack_archive "$DATA" "$RUNS/cifar10.npz"
    DATA="$RUNS/cifar10.npz"
  fi
  if [ -n "${DATA:-}" ]; then
    options="--config configs/cifar10.py --config.data.image_size=32 --config.data.data_dir=$DATA"
  fi
  if [ -n "${FROM:-}" ]; then cat "$FROM/$name.tar."* | tar -xf - -C "$RUNS"; fi
  measure "$name" "$PYTHON" -m experiments.paper.timed_run --budgets "$labels" \
    --seeds "${seed:-0}" --method "$method" --workdir "$RUNS/$name" --until "$until" \
    --config.data.pipeline=device --config.model.dtype=bfloat16 --config.keep_checkpoints=1 \
    --timed "$TIMED" $MODEL $options
  if [ -d "$RUNS/$name" ]; then
    tar -cf - -C "$RUNS" --exclude="*-tmp-*" "$name" | split -b 15000000 - "$OUT/$name.tar."
  fi
}

# NAME COMMAND...: a command of cls-jax with the photographs.
photos() {
  local name=$1
  shift
  measure "$name" "$PYTHON" -m cls_jax "$@"
}

part_c() {
  if [ -n "${PHOTOS:-}" ]; then
    local labels="--config.num_labels=$LABELS" other="$RUNS/other_cache"
    photos C-instant train "$PHOTOS" --instant --workdir "$RUNS/instant" $labels
    photos C-predict predict "$RUNS/instant" "$PHOTOS/test" --output "$OUT/C-default.csv"
    photos C-train train "$PHOTOS" --workdir "$RUNS/photos" $labels $PHOTO_TRAINING
    keep "$RUNS/photos" C-train
    photos C-eval evaluate "$RUNS/photos" &
    photos C-eval-cpu evaluate "$RUNS/photos" --device cpu
    wait
    # TF32 against float32, with features of its own.
    XDG_CACHE_HOME=$other JAX_DEFAULT_MATMUL_PRECISION=highest \
      photos C-instant-highest train "$PHOTOS" --instant --workdir "$RUNS/instant_highest" \
      $labels &
    sleep 10 # A second process beside it, as a user would start one.
    photos C-beside predict "$RUNS/instant" "$PHOTOS/test" --output "$OUT/C-beside.csv"
    wait
    XDG_CACHE_HOME=$other JAX_DEFAULT_MATMUL_PRECISION=highest \
      photos C-predict-highest predict "$RUNS/instant_highest" "$PHOTOS/test" \
      --output "$OUT/C-highest.csv"
  fi
  measure C-features "$PYTHON" -m experiments.benchmarks.features --images "$IMAGES" \
    --vectors "$VECTORS" --output "$OUT/C-features.md"
}

# The same, with a table of what was compiled.
compiled() {
  local name=$1
  shift
  measure "$name" "$PYTHON" -m experiments.benchmarks.compilations "$OUT/$name.md" "$@"
}

part_d() {
  local labels="--config.num_labels=$LABELS" seed
  if [ -n "${PHOTOS:-}" ]; then
    export XDG_CACHE_HOME="$RUNS/cache" # Everything is cold.
    photos D-instant train "$PHOTOS" --instant --workdir "$RUNS/D-instant" $labels
    photos D-predict predict "$RUNS/D-instant" "$PHOTOS/test" --output "$OUT/D-predict.csv"
    photos D-warm train "$PHOTOS" --instant --workdir "$RUNS/D-warm" $labels --config.seed=1
    photos D-predict-warm predict "$RUNS/D-warm" "$PHOTOS/test" --output "$OUT/D-warm.csv"
    for seed in 2 3 4; do # At once.
      photos "D-three-$seed" train "$PHOTOS" --instant --workdir "$RUNS/D-$seed" $labels \
        --config.seed="$seed" &
    done
    wait
    if [ "$SIZE" = full ]; then PHOTO_TRAINING="--minutes 2"; fi
    compiled D-minutes train "$PHOTOS" --workdir "$RUNS/D-minutes" $labels $PHOTO_TRAINING
    keep "$RUNS/D-minutes" D-minutes
    # The first one again, cold.
    XDG_CACHE_HOME="$RUNS/other_cache" \
      compiled D-compiled train "$PHOTOS" --instant --workdir "$RUNS/D-compiled" $labels
  fi
  step D-step "float32,unrolled,synthetic bfloat16,unrolled,synthetic" $PHOTO_STEP
  # For so few steps, it is not tuned.
  step D-step-untuned "float32,unrolled,synthetic bfloat16,unrolled,synthetic" $PHOTO_STEP \
    --config.num_steps=1000
  if "$PYTHON" -c "$HAS_PEER"; then
    measure D-torch "$PYTHON" -m experiments.benchmarks.torch_step --output "$OUT/D-torch.md" \
      $TORCH_STEP
  else
    report "D-torch: left out, torch and timm are not installed"
  fi
  measure D-depthwise "$PYTHON" -m experiments.benchmarks.depthwise --output "$OUT/D-depthwise.md" \
    --threads "$THREADS" $DEPTHWISE
}

: >"$LOG"
report "part $PART, $SIZE, $(uname -n), $($PYTHON --version 2>&1)"
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader \
  >>"$LOG" 2>/dev/null || report "no nvidia-smi"
case $PART in
  A) part_a ;;
  B) part_b ;;
  C) part_c ;;
  D) part_d ;;
  *) report "There is no part $PART: choose A, B, C or D" && exit 2 ;;
esac
for name in ${ONLY:-}; do
  grep -qF "] $name: " "$LOG" || report "$name: failed, part $PART has none with these settings"
done
report "part $PART ends"
# Measurements in the background can tell by the log only.
! grep -qE "^\[[0-9]+ s\] [A-Za-z0-9-]+: (failed|passed over)" "$LOG"
