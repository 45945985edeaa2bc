#!/bin/bash
# Trains on a disk of 5 MB that is full after two checkpoints, then frees space and resumes.
# Needs Linux with user namespaces: unshare gives the small file system to this script alone.
#
#     bash experiments/studies/full_disk.sh
#
# Exits with 0 if the run reported the full disk, kept its good checkpoints and, once it had space,
# got the result of a run that had space from the start.
set -euo pipefail
script=$(realpath "$0")
cd "$(dirname "$script")/../.."

if [ "${1:-}" != "inside" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    unshare --user --map-root-user --mount bash "$script" inside "$folder"
    exit
fi

python=${PYTHON:-python}
folder=$2
small=$folder/small
options="--config=configs/digits.py:20 --config.num_steps=12 --config.batch_size=8 --config.mu=2
    --config.log_every=1 --config.eval_every=6 --config.checkpoint_every=2
    --config.data.image_size=8 --config.data.cutout=3"

# The curves and the accuracies; without timings.
list_figures() {
    sed -E 's/, "perf[^,}]*//' "$1/metrics.jsonl"
    grep test_accuracy "$1/result.json"
}

$python main.py $options --workdir "$folder/undisturbed" >"$folder/undisturbed.log" 2>&1

mkdir "$small"
mount -t tmpfs -o size=5m tmpfs "$small"
code=0
$python main.py $options --workdir "$small/run" >"$folder/full.log" 2>&1 || code=$?
tr '\r' '\n' <"$folder/full.log" | grep -E "^(Warning|Error)"
[ "$code" = 2 ]
grep -q "could not be written (No space left on device)" "$folder/full.log"
! grep -q Traceback "$folder/full.log"
$python main.py --mode eval --workdir "$small/run"

mount -o remount,size=64m "$small"
$python main.py $options --workdir "$small/run" >"$folder/again.log" 2>&1
diff <(list_figures "$folder/undisturbed") <(list_figures "$small/run")
echo "The result is that of the undisturbed run."
