#!/usr/bin/env bash
# What only a GPU can tell, in one call: is a step there the CPU's, how fast is it, how well does
# it train in the minutes that are left.
#
#   DATA=cifar10.npz PEER=checkout OUT=results MINUTES=5 bash experiments/gpu_check.sh
#
# PEER: a checkout of the authors' PyTorch code, timed on the same GPU where torch is installed.
# DATA: an .npz or archive as in the README; without it nothing is trained. The training goes on
# from the last call's newest checkpoint, as long as its folder in runs/ is there.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-runs/gpu_check}
mkdir -p "$OUT"

$PYTHON -m experiments.compare_devices --config configs/cifar10.py \
  --config.batch_size=16 --config.mu=4 | tee "$OUT/compare.txt" || echo "bounds missed, see above"

FORMS="bfloat16,unrolled,device bfloat16,unrolled,synthetic bfloat16,unrolled,synthetic,8"
FORMS="$FORMS bfloat16,vmap,synthetic bfloat16,separate,synthetic bfloat16,remat,synthetic"
FORMS="$FORMS float32,unrolled,synthetic float32,vmap,synthetic highest,unrolled,synthetic"
$PYTHON -m experiments.benchmark --config configs/cifar10.py --output "$OUT/step.md" \
  --variants "$FORMS" ${PEER:+--peer "$PEER" --peer_forms "released tuned"}

$PYTHON -m experiments.profile_step --config configs/cifar10.py --form bfloat16,unrolled,device \
  --output "$OUT/profile.md"

if [ -n "${DATA:-}" ]; then
  timeout "$((60 * ${MINUTES:-5}))" $PYTHON main.py --config configs/cifar10.py:250 \
    --config.data.pipeline=device --config.data.data_dir="$DATA" --config.model.dtype=bfloat16 \
    --config.num_steps="${STEPS:-30000}" || echo "stopped; the same call goes on"
  cp runs/cifar10-250-cls-seed0/metrics.jsonl "$OUT/"
fi
