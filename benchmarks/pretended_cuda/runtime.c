/* CUDA's runtime, cuBLAS and driver as far as torch calls them in a training step, on a machine without a GPU: memory is
 * promised and never touched, kernels do nothing and are counted. What the host does is then all there is: torch's own
 * allocator, dispatch, autograd, and inductor's and Triton's compilation for a Hopper.
 *
 * Preloaded, a function here takes the place of the library's; as libcuda.so.1 it is Triton's driver. Arguments that do
 * not matter are left out: the ABI lets a callee ignore them. Written from the public headers, which it includes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver_types.h"
#include "trace.h"

#define OUT_OF_MEMORY 2
#define NO_SUCH_DEVICE 101
#define NOT_FOUND 500
#define RECORDING 900 /* not allowed while a stream is recorded */
#define NOT_RECORDED 906 /* it would go past the recording */
#define INVALID 901 /* a recording that had one of the two */
#define RANGE (1ull << 42) /* addresses, of which few are used */
#define PAGE (2ull << 20)
#define COPIED (1ull << 20) /* larger copies are not made: nobody reads what kernels would have written */
#define NAMES (1 << 18)
#define EVENTS (1 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int device;

/* What happened since `pretended_begin`, told by name. */

static const char *events[EVENTS];
static long happened;
static int note(const char *name);

/* While a stream is recorded into a graph, what it is given is counted in the graph instead, and what streams are given
 * that wait for it (`joined`). Whatever else would be done then is an error, as on a device: waiting, or work of the
 * stream that all others wait for. */
static void *recorded;
static void *joined[64];
static int joins;
static long nodes;
static unsigned long long recordings;
static int invalid; /* whether a recording had such an error: then it ends with one, too */
static __thread int last_error;

static int failed(int error) { return last_error = error; }
static int refused(int error) { return invalid = 1, failed(error); }

static int is_recorded(const void *s) {
  if (!recorded) return 0;
  for (int i = 0; i < joins; i++)
    if (joined[i] == s) return 1;
  return s == recorded;
}

static int asked(void *stream, const char *name) {
  if (recorded && !stream) return refused(NOT_RECORDED);
  if (is_recorded(stream)) return __sync_fetch_and_add(&nodes, 1), 0;
  return note(name);
}

static int waited(const char *name) { return recorded ? refused(RECORDING) : note(name); }

static int note(const char *name) {
  long at = __sync_fetch_and_add(&happened, 1);
  if (at < EVENTS) events[at] = name;
  return 0;
}

void pretended_begin(void) { happened = 0; }
long pretended_count(void) { return happened < EVENTS ? happened : EVENTS; }
const char *pretended_name(long at) { return events[at]; }

/* Memory */

typedef struct {
  char *at;
  size_t bytes;
} Block;

static char *card, *pinned;
static size_t card_top, pinned_top, used, total = 80ull << 30;
static Block blocks[1 << 16], spare[1 << 16];
static int held, spared;

__attribute__((constructor)) static void promise(void) {
  const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  card = mmap(0, RANGE, PROT_READ | PROT_WRITE, how, -1, 0);
  pinned = mmap(0, RANGE, PROT_READ | PROT_WRITE, how, -1, 0);
  const char *given = getenv("PRETENDED_GIB");
  if (given) total = (size_t)atol(given) << 30;
}

static int within(const void *p, const char *base) { return (char *)p >= base && (char *)p < base + RANGE; }
static size_t paged(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

int cudaMalloc(void **p, size_t bytes) {
  pthread_mutex_lock(&lock);
  int result = used + bytes > total ? OUT_OF_MEMORY : 0;
  if (!result) {
    char *at = NULL;
    for (int i = 0; i < spared && !at; i++)
      if (spare[i].bytes == paged(bytes)) at = spare[i].at, spare[i] = spare[--spared];
    if (!at) at = card + card_top, card_top += paged(bytes);
    blocks[held++] = (Block){at, bytes};
    used += bytes;
    *p = at;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

int cudaFree(void *p) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < held; i++)
    if (blocks[i].at == p) {
      used -= blocks[i].bytes;
      spare[spared++] = (Block){p, paged(blocks[i].bytes)};
      madvise(p, blocks[i].bytes, MADV_DONTNEED);
      blocks[i] = blocks[--held];
      break;
    }
  pthread_mutex_unlock(&lock);
  return 0;
}

int cudaHostRegister(void) { return 0; }
int cudaHostUnregister(void) { return 0; }
int cudaHostAlloc(void **p, size_t bytes) {
  *p = pinned + __sync_fetch_and_add(&pinned_top, (bytes + 4095) / 4096 * 4096);
  return 0;
}

int cudaFreeHost(void) { return 0; }
int cudaMemGetInfo(size_t *free_bytes, size_t *all) { return *free_bytes = total - used, *all = total, 0; }
int cudaMemset(void) { return note("memset"); }
int cudaMemsetAsync(void *p, int value, size_t bytes, void *stream) { return asked(stream, "memset"); }

static int copy(void *to, const void *from, size_t bytes, void *stream) {
  const int there = within(to, card), here = within(from, card);
  if (there && here) return asked(stream, "copy on the device");
  if (bytes <= COPIED) memcpy(to, from, bytes);
  if (!within(there ? from : to, pinned)) {
    traced("await stream %p", stream);
    return waited("wait: copy of memory that is not pinned");
  }
  return asked(stream, there ? "copy to the device" : "copy from the device");
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  return copy(to, from, bytes, stream);
}
int cudaMemcpy(void *to, const void *from, size_t bytes) {
  traced("await stream %p", NULL);
  return waited("wait: cudaMemcpy"), copy(to, from, bytes, NULL);
}

int cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *p) {
  memset(found, 0, sizeof *found);
  found->type = within(p, card) ? cudaMemoryTypeDevice : within(p, pinned) ? cudaMemoryTypeHost : 0;
  found->devicePointer = found->type ? (void *)p : NULL;
  found->hostPointer = within(p, pinned) ? (void *)p : NULL;
  return 0;
}

/* The device: one H100, by the figures of its data sheet */

static int attribute(int which) {
  switch (which) {
    case 1: case 2: case 3: return 1024;  /* threads per block, along two of its sides */
    case 4: return 64;                    /* along the third */
    case 5: return 2147483647;            /* blocks along the first side of a grid */
    case 6: case 7: return 65535;         /* along the others */
    case 8: return 48 << 10;              /* shared bytes per block */
    case 10: return 32;                   /* threads per warp */
    case 12: case 82: return 65536;       /* registers per block, per multiprocessor */
    case 13: return 1980000;              /* kHz */
    case 16: return 132;                  /* multiprocessors */
    case 36: return 2619000;              /* kHz of the memory */
    case 37: return 5120;                 /* bits of its bus */
    case 38: return 50 << 20;             /* bytes of the second cache */
    case 39: return 2048;                 /* threads per multiprocessor */
    case 75: return 9;                    /* compute capability 9.0 */
    case 81: return 228 << 10;            /* shared bytes per multiprocessor */
    case 97: return 227 << 10;            /* per block, when asked for */
    case 106: return 32;                  /* blocks per multiprocessor */
    default: return 0;
  }
}

int cudaGetDeviceProperties(struct cudaDeviceProp *p) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "pretended H100");
  p->totalGlobalMem = total;
  p->major = 9;
  p->warpSize = 32, p->multiProcessorCount = 132;
  p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = 227 << 10;
  p->sharedMemPerMultiprocessor = 228 << 10, p->reservedSharedMemPerBlock = 1 << 10;
  p->l2CacheSize = 50 << 20, p->memPitch = 2147483647;
  p->textureAlignment = 512, p->texturePitchAlignment = 32;
  p->concurrentKernels = p->unifiedAddressing = p->cooperativeLaunch = p->clusterLaunch = 1;
  p->streamPrioritiesSupported = p->memoryPoolsSupported = 1, p->asyncEngineCount = 3;
  return 0;
}

int cudaGetDeviceCount(int *n) { return *n = 1, 0; }
int cudaGetDevice(int *n) { return *n = device, 0; }
int cudaSetDevice(int n) { return n ? NO_SUCH_DEVICE : 0; }
int cudaDeviceGetAttribute(int *found, int which) { return *found = attribute(which), 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return 0;
}
int cudaDriverGetVersion(int *v) { return *v = 13000, 0; }
int cudaRuntimeGetVersion(int *v) { return *v = 13000, 0; }
int cudaGetLastError(void) {
  int e = last_error;
  return last_error = 0, e;
}
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(int e) {
  return e == OUT_OF_MEMORY  ? "out of memory"
         : e == RECORDING    ? "operation not permitted when stream is capturing"
         : e == NOT_RECORDED ? "operation would make the legacy stream depend on a capturing blocking stream"
         : e == INVALID      ? "operation failed due to a previous error during capture"
                             : "pretended";
}
const char *cudaGetErrorName(int e) { return e == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "pretended"; }

/* Streams and events: all is done as soon as it was asked for */

static int made(void **p) { return *p = calloc(1, 4096), 0; }
static int gone(void *p) { return free(p), 0; }

int cudaStreamCreateWithPriority(void **s) { return made(s); }
int cudaStreamCreate(void **s) { return made(s); }
int cudaStreamDestroy(void *s) { return gone(s); }
int cudaStreamQuery(void) { return 0; }

typedef struct {
  long nodes;
  unsigned long long number;
} Graph;

int cudaStreamBeginCapture(void *s) {
  recorded = s, nodes = joins = invalid = 0, recordings++;
  return traced("recording %llu %p", recordings, s), 0;
}
int cudaStreamEndCapture(void *s, void **graph) {
  if (invalid) return recorded = *graph = NULL, failed(INVALID);
  Graph *made = *graph = calloc(1, sizeof *made);
  *made = (Graph){nodes, recordings};
  recorded = NULL;
  return traced("recorded %llu", recordings), 0;
}
int cudaStreamIsCapturing(void *s, int *state) { return *state = is_recorded(s), 0; }
int cudaStreamGetCaptureInfo(void *s, int *state, unsigned long long *id) {
  if (id) *id = recordings;
  return cudaStreamIsCapturing(s, state);
}
int cudaGraphGetNodes(const Graph *graph, void *found, size_t *n) { return *n = graph->nodes, 0; }
int cudaGraphInstantiateWithFlags(Graph **p, const Graph *graph) {
  *p = malloc(sizeof **p);
  return **p = *graph, 0;
}
int cudaGraphLaunch(Graph *graph, void *stream) {
  traced("replay %llu %p", graph->number, stream);
  return asked(stream ? stream : graph, "graph");
}
int cudaGraphDestroy(void *graph) { return free(graph), 0; }
int cudaGraphExecDestroy(void *graph) { return free(graph), 0; }
int cudaStreamGetPriority(void *s, int *p) { return *p = 0, 0; }
int cudaThreadExchangeStreamCaptureMode(void) { return 0; }
int cudaEventCreate(void **e) { return made(e); }
int cudaEventCreateWithFlags(void **e) { return made(e); }
int cudaEventDestroy(void *e) { return gone(e); }
int cudaEventQuery(void) { return 0; }
int cudaEventRecord(void **e, void *s) {
  traced("record %p %p", s, e);
  return *e = is_recorded(s) ? recorded : NULL, 0;
}
int cudaEventRecordWithFlags(void **e, void *s) { return cudaEventRecord(e, s); }
int cudaStreamWaitEvent(void *s, void **e) {
  traced("after %p %p", s, e);
  if (!recorded || *e != recorded) return 0;
  if (!s) return refused(NOT_RECORDED);
  if (!is_recorded(s)) joined[joins++] = s;
  return 0;
}
int cudaEventElapsedTime(float *milliseconds) { return *milliseconds = 1, 0; }
int cudaEventSynchronize(void *e) { return traced("await event %p", e), waited("wait: for an event"); }
int cudaStreamSynchronize(void *s) { return traced("await stream %p", s), waited("wait: for a stream"); }
int cudaDeviceSynchronize(void) { return traced("await device"), waited("wait: for the device"); }

/* Kernels: torch's own register their names when a library is loaded */

typedef struct {
  const void *entry;
  const char *name;
} Kernel;
static Kernel kernels[NAMES];

static Kernel *kernel_at(const void *entry) {
  size_t at = (((uintptr_t)entry >> 4) * 11400714819323198485ull) >> 46;
  while (kernels[at].entry && kernels[at].entry != entry) at = (at + 1) % NAMES;
  return &kernels[at];
}

static int launched(const void *entry, void *stream) {
  const Kernel *kernel = kernel_at(entry);
  return asked(stream, kernel->entry ? kernel->name : "a kernel without a name");
}

void __cudaRegisterFunction(void **h, const char *entry, char *f, const char *name) {
  pthread_mutex_lock(&lock);
  *kernel_at(entry) = (Kernel){entry, name};
  pthread_mutex_unlock(&lock);
}
void **__cudaRegisterFatBinary(void) {
  static void *handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void) {}
void __cudaUnregisterFatBinary(void) {}
void __cudaRegisterVar(void) {}
char __cudaInitModule(void) { return 0; }

typedef struct {
  unsigned x, y, z;
} Sizes;
static __thread struct {
  Sizes grid, block;
  size_t shared;
  void *stream;
} configured;

unsigned __cudaPushCallConfiguration(Sizes grid, Sizes block, size_t shared, void *stream) {
  configured.grid = grid, configured.block = block, configured.shared = shared, configured.stream = stream;
  return 0;
}
int __cudaPopCallConfiguration(Sizes *grid, Sizes *block, size_t *shared, void **stream) {
  *grid = configured.grid, *block = configured.block, *shared = configured.shared, *stream = configured.stream;
  return 0;
}
int __cudaGetKernel(const void **kernel, const void *entry) { return *kernel = entry, 0; }
int cudaLaunchKernel(const void *entry, Sizes grid, Sizes block, void **arguments, size_t shared, void *stream) {
  return launched(entry, stream);
}
int __cudaLaunchKernel(const void *entry, Sizes grid, Sizes block, void **arguments, size_t shared, void *stream) {
  return launched(entry, stream);
}
int cudaLaunchCooperativeKernel(const void *entry, Sizes grid, Sizes block, void **arguments, size_t shared,
                                void *stream) {
  return launched(entry, stream);
}
int cudaLaunchKernelExC(const struct cudaLaunchConfig_st *config, const void *entry) {
  return launched(entry, config->stream);
}
int cudaFuncSetAttribute(void) { return 0; }
int cudaFuncGetAttributes(struct cudaFuncAttributes *found) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024, found->numRegs = 32, found->binaryVersion = found->ptxVersion = 90;
  return 0;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n) { return *n = 2, 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n) { return *n = 2, 0; }
int cudaGetSymbolAddress(void **p) {
  static char anything[4096];
  return *p = anything, 0;
}

/* cuBLAS: every product is one launch */

int cublasCreate_v2(void **h) { return made(h); }
int cublasDestroy_v2(void *h) { return gone(h); }
int cublasSetStream_v2(void **h, void *stream) { return *h = stream, 0; }
int cublasSetWorkspace_v2(void) { return 0; }
int cublasSetMathMode(void) { return 0; }
int cublasGetMathMode(void *h, int *mode) { return *mode = 0, 0; }
int cublasSetPointerMode_v2(void) { return 0; }
int cublasGetPointerMode_v2(void *h, int *mode) { return *mode = 0, 0; }
int cublasGemmEx(void **h) { return asked(*h, "product"); }
int cublasSgemm_v2(void **h) { return asked(*h, "product"); }
int cublasDgemm_v2(void **h) { return asked(*h, "product"); }
int cublasGemmStridedBatchedEx(void **h) { return asked(*h, "product"); }
int cublasSgemv_v2(void **h) { return asked(*h, "product"); }
int cublasDgemv_v2(void **h) { return asked(*h, "product"); }
int cublasSgemmStridedBatched(void **h) { return asked(*h, "product"); }
int cublasDgemmStridedBatched(void **h) { return asked(*h, "product"); }
int cublasLtMatmul(void *h, void *d, void *alpha, void *A, void *a, void *B, void *b, void *beta, void *C, void *c, void *D,
                   void *e, void *algorithm, void *workspace, size_t bytes, void *stream) {
  return asked(stream, "product");
}
size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtMatmulDescCreate(void **p) { return made(p); }
int cublasLtMatmulDescDestroy(void *p) { return gone(p); }
int cublasLtMatmulDescSetAttribute(void) { return 0; }
int cublasLtMatrixLayoutCreate(void **p) { return made(p); }
int cublasLtMatrixLayoutDestroy(void *p) { return gone(p); }
int cublasLtMatrixLayoutSetAttribute(void) { return 0; }
int cublasLtMatmulPreferenceCreate(void **p) { return made(p); }
int cublasLtMatmulPreferenceDestroy(void *p) { return gone(p); }
int cublasLtMatmulPreferenceSetAttribute(void) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *A, void *B, void *C, void *D, void *preference, int asked,
                                   void *results, int *found) {
  memset(results, 0, 96); /* one that needs no workspace */
  return *found = 1, 0;
}

/* The driver, for Triton and for what torch looks up in it */

int cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned v, unsigned long long flags, int *state) {
  *found = dlsym(RTLD_DEFAULT, name);
  if (state) *state = *found ? 0 : 1;
  return *found ? 0 : NOT_FOUND;
}
int cuInit(void) { return 0; }
int cuDeviceGet(int *d, int n) { return *d = n, 0; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGetAttribute(int *found, int which) { return *found = attribute(which), 0; }
int cuDriverGetVersion(int *v) { return *v = 13000, 0; }
int cuCtxGetDevice(int *d) { return *d = 0, 0; }
int cuCtxGetCurrent(void **c) {
  static char context[64];
  return *c = context, 0;
}
int cuCtxSetCurrent(void) { return 0; }
int cuDevicePrimaryCtxRetain(void **c) { return cuCtxGetCurrent(c); }
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { return *flags = 0, *active = 1, 0; }
int cuCtxGetLimit(size_t *found) { return *found = 1024, 0; }
int cuCtxSetLimit(void) { return 0; }
int cuModuleLoadData(void **m) { return made(m); }
int cuModuleLoad(void **m) { return made(m); }
int cuModuleUnload(void) { return 0; }
int cuModuleGetFunction(const char **f, void *m, const char *name) { return *f = strdup(name), 0; }
int cuFuncGetAttribute(int *found, int which) { return *found = which == 0 ? 1024 : which == 4 ? 32 : 0, 0; }
int cuFuncSetAttribute(void) { return 0; }
int cuFuncSetCacheConfig(void) { return 0; }
int cuLaunchKernel(const char *name, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                   unsigned shared, void *stream) {
  return asked(stream, name);
}
int cuLaunchKernelEx(const struct {
  unsigned sizes[7];
  void *stream;
} *config, const char *name) {
  return asked(config->stream, name);
}
int cuOccupancyMaxActiveClusters(int *n) { return *n = 1, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n) { return *n = 2, 0; }
int cuTensorMapEncodeTiled(void *map) { return memset(map, 0, 128), 0; }
int cuPointerGetAttribute(void *found, int which, void *p) {
  if (which == 3) *(void **)found = p; /* its address on the device */
  else *(int *)found = which == 2 ? (within(p, card) ? 2 : 1) : 0;
  return 0;
}
int cuGetErrorString(int e, const char **s) { return *s = "pretended", 0; }
