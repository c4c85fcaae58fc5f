// A driver that loses its device: as NVIDIA's, but after so many launches of graphs (GRADUS_LAUNCHES) every further one fails as it
// does when a device falls off the bus. Built as libcuda.so over the true libcuda.so.1, and found before it by LD_LIBRARY_PATH.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

enum { LOST = 46 }; // CUDA_ERROR_DEVICE_UNAVAILABLE

int cuGraphLaunch(void *graph, void *stream) {
    static int (*launch)(void *, void *);
    static long left = -1;
    if (!launch) {
        launch = (int (*)(void *, void *))dlsym(RTLD_NEXT, "cuGraphLaunch");
        if (!launch) launch = (int (*)(void *, void *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGraphLaunch");
        left = atol(getenv("GRADUS_LAUNCHES"));
    }
    return left-- > 0 ? launch(graph, stream) : LOST;
}
