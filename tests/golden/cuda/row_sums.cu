extern "C" __global__ void __launch_bounds__(128) row_sums_kernel(float* __restrict__ x_ptr, float* __restrict__ y_ptr, int64_t m);
extern "C" __global__ void __launch_bounds__(128) row_sums_kernel(float* __restrict__ x_ptr, float* __restrict__ y_ptr, int64_t m) {
  __shared__ alignas(64) float _ptr[128];
  _ptr[((int)threadIdx.x)] = x_ptr[((((int64_t)blockIdx.x) * (int64_t)128) + ((int64_t)((int)threadIdx.x)))];
  __syncthreads();
  if (((int)threadIdx.x) < 64) {
    _ptr[((int)threadIdx.x)] = (_ptr[((int)threadIdx.x)] + _ptr[(((int)threadIdx.x) + 64)]);
  }
  __syncthreads();
  if (((int)threadIdx.x) < 32) {
    _ptr[((int)threadIdx.x)] = (_ptr[((int)threadIdx.x)] + _ptr[(((int)threadIdx.x) + 32)]);
  }
  __syncthreads();
  if (((int)threadIdx.x) < 16) {
    _ptr[((int)threadIdx.x)] = (_ptr[((int)threadIdx.x)] + _ptr[(((int)threadIdx.x) + 16)]);
  }
  __syncthreads();
  if (((int)threadIdx.x) < 8) {
    _ptr[((int)threadIdx.x)] = (_ptr[((int)threadIdx.x)] + _ptr[(((int)threadIdx.x) + 8)]);
  }
  __syncthreads();
  if (((int)threadIdx.x) < 4) {
    _ptr[((int)threadIdx.x)] = (_ptr[((int)threadIdx.x)] + _ptr[(((int)threadIdx.x) + 4)]);
  }
  __syncthreads();
  if (((int)threadIdx.x) < 2) {
    _ptr[((int)threadIdx.x)] = (_ptr[((int)threadIdx.x)] + _ptr[(((int)threadIdx.x) + 2)]);
  }
  __syncthreads();
  if (((int)threadIdx.x) < 1) {
    _ptr[0] = (_ptr[0] + _ptr[1]);
  }
  __syncthreads();
  if (((int)threadIdx.x) == 0) {
    y_ptr[((int64_t)blockIdx.x)] = _ptr[0];
  }
}

