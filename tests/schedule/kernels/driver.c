/* Call one compiled kernel without TVM: arguments on stdin, the tensors as it leaves them on stdout.
 *
 * An argument is int32 words: 0 and then an int64, or 1, DLPack's type code, bits, number of
 * dimensions, then int64 dimensions and the data. Parallel loops run as three tasks, in turn,
 * and the one function that a kernel calls by name, runtime.NumThreads, says so.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

enum { MOST = 16, ALIGNMENT = 64, TASKS = 3 };

int __tvm_ffi_main(void *self, const TVMFFIAny *args, int32_t n, TVMFFIAny *result);

/* What the runtime's loader would fill in; a kernel has those that it needs. */
#define OPTIONAL __attribute__((weak))
extern void *__TVMBackendParallelLaunch OPTIONAL;
extern void *__TVMBackendAllocWorkspace OPTIONAL, *__TVMBackendFreeWorkspace OPTIONAL;
extern void *__TVMFFIHandleInitOnce OPTIONAL, *__TVMFFIFunctionCall OPTIONAL;

typedef struct {
  void *sync_handle;
  int32_t num_task;
} Group;
typedef int (*Task)(int id, Group *group, void *closure);

static int launch(Task task, void *closure, int asked) {
  Group group = {NULL, asked ? asked : TASKS};
  for (int id = 0; id < group.num_task; ++id) {
    int failed = task(id, &group, closure);
    if (failed) return failed;
  }
  return 0;
}

static void *aligned(uint64_t nbytes) {
  return aligned_alloc(ALIGNMENT, (nbytes / ALIGNMENT + 1) * ALIGNMENT);
}

static void *allocate(int type, int id, uint64_t nbytes, int code, int bits) {
  return aligned(nbytes);
}

static int release(int type, int id, void *data) {
  free(data);
  return 0;
}

static int find(void **function, int (*search)(void **found)) { return 0; }

static int count_threads(void *function, TVMFFIAny *args, int32_t n, TVMFFIAny *result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = TASKS;
  return 0;
}

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t n) {
  fprintf(stderr, "%s: ", kind);
  for (int i = 0; i < n; ++i) fputs(parts[i] ? parts[i] : "", stderr);
  fputc('\n', stderr);
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  fprintf(stderr, "%s: %s\n", kind, message);
}

static void take(void *to, size_t nbytes) {
  if (nbytes && fread(to, nbytes, 1, stdin) != 1) exit(3);
}

static size_t take_tensor(DLTensor *tensor) {
  int32_t head[3];
  take(head, sizeof head);
  memset(tensor, 0, sizeof *tensor);
  tensor->device.device_type = kDLCPU;
  tensor->dtype = (DLDataType){head[0], head[1], 1};
  tensor->ndim = head[2];
  tensor->shape = calloc(head[2], sizeof *tensor->shape);
  take(tensor->shape, head[2] * sizeof *tensor->shape);
  size_t nbytes = head[1] / 8;
  for (int i = 0; i < head[2]; ++i) nbytes *= tensor->shape[i];
  tensor->data = aligned(nbytes);
  take(tensor->data, nbytes);
  return nbytes;
}

int main(void) {
  static TVMFFIAny args[MOST];
  static DLTensor tensors[MOST];
  static size_t nbytes[MOST];
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = launch;
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = allocate;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = release;
  if (&__TVMFFIHandleInitOnce) __TVMFFIHandleInitOnce = find;
  if (&__TVMFFIFunctionCall) __TVMFFIFunctionCall = count_threads;
  int32_t n = 0, is_tensor;
  for (; n < MOST && fread(&is_tensor, sizeof is_tensor, 1, stdin) == 1; ++n) {
    if (is_tensor) {
      nbytes[n] = take_tensor(&tensors[n]);
      args[n].type_index = kTVMFFIDLTensorPtr;
      args[n].v_ptr = &tensors[n];
    } else {
      args[n].type_index = kTVMFFIInt;
      take(&args[n].v_int64, sizeof args[n].v_int64);
    }
  }
  TVMFFIAny result;
  memset(&result, 0, sizeof result);
  if (__tvm_ffi_main(NULL, args, n, &result)) return 1;
  for (int i = 0; i < n; ++i) fwrite(tensors[i].data, 1, nbytes[i], stdout);
  return 0;
}
