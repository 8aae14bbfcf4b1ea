/* graph.c - work kept and run again at once (CUDA graphs): one launch where there were a hundred.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>

struct graph {
    cudaGraphExec_t handle;
};

void cuda_graph_begin(struct device *dev, struct stream *s)
{
    if (cuda_healthy(dev))
        cuda_ok(dev, "graph_begin",
                cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal));
}

struct graph *cuda_graph_end(struct device *dev, struct stream *s)
{
    struct graph *g = calloc(1, sizeof *g);
    cudaGraph_t kept = NULL;
    cudaError_t rc = cudaStreamEndCapture(s->handle, &kept); /* after a failure too */
    if (!g)
        device_fail(dev, "graph_end", "out of memory");
    if (cuda_healthy(dev) && cuda_ok(dev, "graph_end", rc))
        cuda_ok(dev, "graph_end", cudaGraphInstantiate(&g->handle, kept, 0));
    if (kept)
        cudaGraphDestroy(kept);
    if (cuda_healthy(dev))
        return g;
    free(g);
    return NULL;
}

void cuda_graph_launch(struct device *dev, struct stream *s, struct graph *g)
{
    if (cuda_healthy(dev))
        cuda_ok(dev, "graph_launch", cudaGraphLaunch(g->handle, s->handle));
}

void cuda_graph_free(struct device *dev, struct graph *g)
{
    if (!g)
        return;
    cuda_ok(dev, "graph_free", cudaGraphExecDestroy(g->handle));
    free(g);
}
