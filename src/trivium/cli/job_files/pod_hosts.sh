# Every rank has two connections to the store on its leader's host, which needs as many open files.
ulimit -S -n "$(ulimit -H -n)"
# A pod that replaces another one has its name, which stays left out only on the node where it failed.
HOST=$OUT/hosts/$HOSTNAME
mkdir -p "$OUT/hosts"
[ "$(cat "$HOST.node" 2> /dev/null)" = "$NODE" ] || rm -f "$HOST.out"
echo "$NODE" > "$HOST.node"
# One pod is one host, which starts its ranks. When a pod is lost, the others continue without it.
exec {{train}}
