extern "C" __global__ void __launch_bounds__(128) widen_kernel(half* __restrict__ x_ptr, float* __restrict__ y_ptr, int64_t m);
extern "C" __global__ void __launch_bounds__(128) widen_kernel(half* __restrict__ x_ptr, float* __restrict__ y_ptr, int64_t m) {
  int64_t cse_v2 = ((((int64_t)blockIdx.x) * (int64_t)128) + ((int64_t)((int)threadIdx.x)));
  y_ptr[((((int64_t)blockIdx.x) * (int64_t)128) + ((int64_t)((int)threadIdx.x)))] = expf(((float)x_ptr[((((int64_t)blockIdx.x) * (int64_t)128) + ((int64_t)((int)threadIdx.x)))]));
}

