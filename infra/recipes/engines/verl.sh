#!/usr/bin/env bash
# RL with verl 0.9 (trainer V1). Needs HOLDFAST_URL and HOLDFAST_API_KEY, which Ray's workers must see. Data: parquet with a column
# `prompt` (a message, shown in logs), `data_source`, and `extra_info` with `task_id`; the recipe writes the messages.
set -euo pipefail
cd "$(dirname "$0")"
: "${MODEL:?a Hugging Face checkpoint}" "${TRAIN:?a parquet file of prompts}"
agent=actor_rollout_ref.rollout.agent
exec python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=holdfast_grpo algorithm.use_kl_in_reward=False \
  data.train_files="$TRAIN" data.val_files="${VALIDATION:-$TRAIN}" data.train_batch_size=16 \
  data.max_prompt_length=16384 data.max_response_length=49152 \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.use_kl_loss=False \
  actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.entropy_coeff=0 \
  actor_rollout_ref.rollout.name="${SERVER:-sglang}" actor_rollout_ref.rollout.mode=async actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.calculate_log_probs=True \
  $agent.default_agent_loop=holdfast $agent.agent_loop_config_path="${AGENT:-verl_agent.yaml}" \
  +$agent.agent_loop_manager_class=holdfast_recipes.engines.verl.HoldfastAgentLoopManager \
  trainer.v1.sampler.sync_refill_failed_groups=True \
  trainer.n_gpus_per_node="${GPUS:-8}" trainer.nnodes="${NODES:-1}" trainer.total_training_steps="${STEPS:-150}" \
  trainer.logger='["console"]' "$@"
