{{expects}}
# One task is one host, which starts its ranks. When a host is lost, the others continue without it.
srun {{pyxis}}--no-kill --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_ON_NODE" {{inside}}{{train}}
