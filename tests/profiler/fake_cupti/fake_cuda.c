/* A libcuda.so.1 that only returns its version: without a driver the agent does
 * not look for CUPTI. */
int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}
