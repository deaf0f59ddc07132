/* NCCL as far as torch's process group calls it: what is asked of it is written down (trace.h), nothing is exchanged.
 * benchmarks/streams.py then says whether the ranks' requests meet. Written from the public header; enumerations are numbers
 * here, and all requests succeed.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace.h"

#define VERSION 22809 /* 2.28.9, torch 2.11's */
#define IN_NONE (-1) /* of a communicator's parts */

typedef struct {
  char internal[128];
} Id;

typedef struct {
  char name[33];
  int rank, size;
} Communicator;

static FILE *trace;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int trace_to(const char *path) { return (trace = fopen(path, "w")) ? 0 : 1; }

void traced(const char *form, ...) {
  va_list given;
  if (!trace) return;
  va_start(given, form);
  pthread_mutex_lock(&lock);
  vfprintf(trace, form, given);
  fputc('\n', trace);
  fflush(trace); /* a rank may be killed */
  pthread_mutex_unlock(&lock);
  va_end(given);
}

/* What the next message is taken for, which NCCL is not told. */
void trace_tag(int tag) { traced("tag %d", tag); }

int ncclGetVersion(int *version) { return *version = VERSION, 0; }
int ncclGetUniqueId(Id *id) {
  static int made;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "%d.%d", getpid(), made++);
  return 0;
}

/* Communicators. The host waits until all their ranks have come. */

static int joined(Communicator **comm, const char *name, int size, int rank) {
  *comm = calloc(1, sizeof **comm);
  snprintf((*comm)->name, sizeof (*comm)->name, "%s", name);
  (*comm)->rank = rank, (*comm)->size = size;
  traced("join %s %d %d", name, size, rank);
  return 0;
}

int ncclCommInitRankConfig(Communicator **comm, int size, Id id, int rank) {
  return joined(comm, id.internal, size, rank);
}
int ncclCommInitRank(Communicator **comm, int size, Id id, int rank) {
  return joined(comm, id.internal, size, rank);
}
int ncclCommInitRankScalable(Communicator **comm, int size, int rank, int ids, Id *id) {
  return joined(comm, id->internal, size, rank);
}
/* Who is in the new one, and by which number, its ranks' requests say together. */
int ncclCommSplit(Communicator *whole, int color, int key, Communicator **comm) {
  static int made;
  if (color == IN_NONE) {
    traced("split %s - 0 0", whole->name);
    return *comm = NULL, 0;
  }
  *comm = calloc(1, sizeof **comm);
  snprintf((*comm)->name, sizeof (*comm)->name, "split%d", made++);
  (*comm)->rank = key, (*comm)->size = -1;
  traced("split %s %s %d %d", whole->name, (*comm)->name, color, key);
  return 0;
}
int ncclCommFinalize(Communicator *comm) { return 0; }
int ncclCommDestroy(Communicator *comm) { return 0; }
int ncclCommAbort(Communicator *comm) { return 0; }
int ncclCommGetAsyncError(Communicator *comm, int *found) { return *found = 0, 0; }
int ncclCommCount(Communicator *comm, int *size) { return *size = comm->size, 0; }
int ncclCommUserRank(Communicator *comm, int *rank) { return *rank = comm->rank, 0; }
int ncclCommRegister(Communicator *comm, void *p, size_t bytes, void **handle) { return 0; }
int ncclCommDeregister(Communicator *comm, void *handle) { return 0; }
const char *ncclGetErrorString(int result) { return result ? "pretended error" : "no error"; }
const char *ncclGetLastError(Communicator *comm) { return ""; }

/* Requests: queue, communicator, what, count, dtype, which sum or which peer */

static int asked(const char *what, size_t count, int dtype, int which, Communicator *comm, void *stream) {
  traced("ask %p %s %s %zu %d %d", stream, comm->name, what, count, dtype, which);
  return 0;
}

int ncclGroupStart(void) { return traced("group"), 0; }
int ncclGroupEnd(void) { return traced("end"), 0; }

int ncclAllReduce(const void *from, void *to, size_t n, int t, int op, Communicator *comm,
                           void *stream) {
  return asked("all_reduce", n, t, op, comm, stream);
}
int ncclReduceScatter(const void *from, void *to, size_t n, int t, int op, Communicator *comm,
                               void *stream) {
  return asked("reduce_scatter", n, t, op, comm, stream);
}
int ncclReduce(const void *from, void *to, size_t n, int t, int op, int root,
                        Communicator *comm, void *stream) {
  return asked("reduce", n, t, root * 16 + op, comm, stream);
}
int ncclAllGather(const void *from, void *to, size_t n, int t, Communicator *comm,
                           void *stream) {
  return asked("all_gather", n, t, 0, comm, stream);
}
int ncclAlltoAll(const void *from, void *to, size_t n, int t, Communicator *comm,
                          void *stream) {
  return asked("all_to_all", n, t, 0, comm, stream);
}
int ncclBroadcast(const void *from, void *to, size_t n, int t, int root, Communicator *comm,
                           void *stream) {
  return asked("broadcast", n, t, root, comm, stream);
}
int ncclBcast(void *at, size_t n, int t, int root, Communicator *comm, void *stream) {
  return asked("broadcast", n, t, root, comm, stream);
}
int ncclSend(const void *from, size_t n, int t, int peer, Communicator *comm, void *stream) {
  return asked("send", n, t, peer, comm, stream);
}
int ncclRecv(void *to, size_t n, int t, int peer, Communicator *comm, void *stream) {
  return asked("receive", n, t, peer, comm, stream);
}
