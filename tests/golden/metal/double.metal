#include <metal_stdlib>
using namespace metal;

union __TVMArgUnion {
 int v_int[2];
};

struct double_kernel_args_t {
  long m;
};

kernel void double_kernel(  device float* x_ptr [[ buffer(0) ]],
  device float* y_ptr [[ buffer(1) ]],
  constant double_kernel_args_t& arg [[ buffer(2) ]],
  uint blockIdx [[threadgroup_position_in_grid]],
  uint threadIdx [[thread_position_in_threadgroup]]
) {
  long cse_v2 = ((((long)blockIdx) * (long)512) + (((long)((int)threadIdx)) * (long)4));
  *(device float4*)(y_ptr + ((((long)blockIdx) * (long)512) + (((long)((int)threadIdx)) * (long)4))) = (*(device float4*)(x_ptr + ((((long)blockIdx) * (long)512) + (((long)((int)threadIdx)) * (long)4))) * float4(2.000000e+00f, 2.000000e+00f, 2.000000e+00f, 2.000000e+00f));
}


