#!/usr/bin/env bash
# RL with slime: MODEL_ARGS, CKPT_ARGS and PERF_ARGS are those of slime's own script for the model; this adds the rollouts.
# Needs HOLDFAST_URL and HOLDFAST_API_KEY, which Ray's workers must see. Prompt data: JSON lines with a prompt (shown in logs) and
# metadata {"task_id": …}; the recipe writes the messages.
set -euo pipefail
cd "$(dirname "$0")"
: "${SLIME:?the folder of slime}" "${MODEL_SCRIPT:?a file of slime/scripts/models that sets MODEL_ARGS}" "${CHECKPOINT:?a Hugging Face checkpoint}"
# shellcheck disable=SC1090
source "$MODEL_SCRIPT"
env=$(printf '{"env_vars": {"HOLDFAST_URL": "%s", "HOLDFAST_API_KEY": "%s"}}' "$HOLDFAST_URL" "$HOLDFAST_API_KEY")
exec ray job submit --address="${RAY_ADDRESS:-http://127.0.0.1:8265}" --runtime-env-json="$env" -- \
  python3 "$SLIME/train.py" "${MODEL_ARGS[@]}" ${CKPT_ARGS[@]+"${CKPT_ARGS[@]}"} ${PERF_ARGS[@]+"${PERF_ARGS[@]}"} \
  --hf-checkpoint "$CHECKPOINT" \
  --prompt-data "${PROMPTS:-prompts.jsonl}" --input-key prompt --metadata-key metadata --rollout-shuffle \
  --rollout-function-path holdfast_recipes.engines.slime.generate_rollout \
  --custom-reward-post-process-path holdfast_recipes.engines.slime.group_advantages \
  --custom-config-path "${CONFIG:-slime.yaml}" \
  --num-rollout "${STEPS:-150}" --rollout-batch-size 16 --n-samples-per-prompt 8 --global-batch-size 128 \
  --rollout-max-response-len 16384 --rollout-temperature 1.0 --use-tis \
  --advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 --kl-loss-coef 0.0 --entropy-coef 0.0 \
  --optimizer adam --lr 1e-6 --lr-decay-style cosine --min-lr 0 --adam-beta1 0.9 --adam-beta2 0.98 --weight-decay 0.1 "$@"
