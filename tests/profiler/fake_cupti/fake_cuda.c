/* A libcuda.so.1 that only says its version: without one the agent looks no
 * further. */
int cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}
