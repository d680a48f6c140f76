#include <metal_stdlib>
using namespace metal;

union __TVMArgUnion {
 int v_int[2];
};

struct row_sums_kernel_args_t {
  long m;
};

kernel void row_sums_kernel(  device float* x_ptr [[ buffer(0) ]],
  device float* y_ptr [[ buffer(1) ]],
  constant row_sums_kernel_args_t& arg [[ buffer(2) ]],
  uint blockIdx [[threadgroup_position_in_grid]],
  uint threadIdx [[thread_position_in_threadgroup]]
) {
  threadgroup float v[128];
  v[((int)threadIdx)] = x_ptr[((((long)blockIdx) * (long)128) + ((long)((int)threadIdx)))];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) < 64) {
    v[((int)threadIdx)] = (v[((int)threadIdx)] + v[(((int)threadIdx) + 64)]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) < 32) {
    v[((int)threadIdx)] = (v[((int)threadIdx)] + v[(((int)threadIdx) + 32)]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) < 16) {
    v[((int)threadIdx)] = (v[((int)threadIdx)] + v[(((int)threadIdx) + 16)]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) < 8) {
    v[((int)threadIdx)] = (v[((int)threadIdx)] + v[(((int)threadIdx) + 8)]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) < 4) {
    v[((int)threadIdx)] = (v[((int)threadIdx)] + v[(((int)threadIdx) + 4)]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) < 2) {
    v[((int)threadIdx)] = (v[((int)threadIdx)] + v[(((int)threadIdx) + 2)]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) < 1) {
    v[0] = (v[0] + v[1]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) == 0) {
    y_ptr[((long)blockIdx)] = v[0];
  }
}


