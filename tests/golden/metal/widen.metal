#include <metal_stdlib>
using namespace metal;

union __TVMArgUnion {
 int v_int[2];
};

struct widen_kernel_args_t {
  long m;
};

kernel void widen_kernel(  device half* x_ptr [[ buffer(0) ]],
  device float* y_ptr [[ buffer(1) ]],
  constant widen_kernel_args_t& arg [[ buffer(2) ]],
  uint blockIdx [[threadgroup_position_in_grid]],
  uint threadIdx [[thread_position_in_threadgroup]]
) {
  long cse_v2 = ((((long)blockIdx) * (long)128) + ((long)((int)threadIdx)));
  y_ptr[((((long)blockIdx) * (long)128) + ((long)((int)threadIdx)))] = exp(((float)x_ptr[((((long)blockIdx) * (long)128) + ((long)((int)threadIdx)))]));
}


