MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$(srun --nodes=1 --ntasks=1 --nodelist="$MASTER_ADDR" {{pyxis}}{{inside}}{{python}} -c \
  'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export MASTER_ADDR MASTER_PORT
{{expects}}
# One task is one rank. Slurm numbers tasks by node (block distribution), so tensor groups stay inside a node. Without a
# port the first host has failed. Ranks are not started then, because they would report an invalid config.
[ -n "$MASTER_PORT" ] && srun {{pyxis}}--distribution=block --kill-on-bad-exit=1 bash -c \
  'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS \
          LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE; exec "$@"' \
  rank {{inside}}{{train}}
