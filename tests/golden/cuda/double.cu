extern "C" __global__ void __launch_bounds__(128) double_kernel(float* __restrict__ x_ptr, float* __restrict__ y_ptr, int64_t m);
extern "C" __global__ void __launch_bounds__(128) double_kernel(float* __restrict__ x_ptr, float* __restrict__ y_ptr, int64_t m) {
  int64_t cse_v2 = ((((int64_t)blockIdx.x) * (int64_t)512) + (((int64_t)((int)threadIdx.x)) * (int64_t)4));
  float4 __1;
    float4 v_ = *(float4*)(x_ptr + ((((int64_t)blockIdx.x) * (int64_t)512) + (((int64_t)((int)threadIdx.x)) * (int64_t)4)));
    float4 v__1 = make_float4(0x1p+1f/*2.000000e+00*/, 0x1p+1f/*2.000000e+00*/, 0x1p+1f/*2.000000e+00*/, 0x1p+1f/*2.000000e+00*/);
    __1.x = (v_.x*v__1.x);
    __1.y = (v_.y*v__1.y);
    __1.z = (v_.z*v__1.z);
    __1.w = (v_.w*v__1.w);
  *(float4*)(y_ptr + ((((int64_t)blockIdx.x) * (int64_t)512) + (((int64_t)((int)threadIdx.x)) * (int64_t)4))) = __1;
}

