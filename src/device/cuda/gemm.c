/* gemm.c - matrix products by cuBLASLt.
 *
 * A plan is made once for each kind of product (shape, layout, types, epilogue, alignment) and
 * kept. The epilogue is fused where cuBLASLt offers it, else done by our own kernels after the
 * product. Large products are measured when first met: the fastest proposal of cuBLASLt is kept
 * among those that give the same bits as its first, on the caller's own data. That synchronises, so
 * it belongs before what anyone times. Small and odd products, as decoding makes by the hundred,
 * take the first.
 *
 * cuBLASLt counts columns first: our row-major d[m,n] = a b is its d'[n,m] = b' a', so our b is its
 * A and our a its B, and a transposed operand of ours is a transposed operand of its. fp32 products
 * are true fp32 (no TF32). CPU twin: src/device/cpu/gemm.c. Tests: tests/unit/test_parity.c,
 * tests/gpu/test_cuda_kernels.c. */
#include "device/cuda/cuda.h"

#include "base/checked.h"
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 16, RUNS = 3, FIRST_BUCKETS = 256, COLUMN_CHUNK = 16384 };

/* What a plan depends on; compared as bytes, so it is zeroed before it is filled. */
struct gemm_key {
    int64_t m, n, k, lda, ldb, ldd;
    int32_t dt, out_dt;
    bool transpose_a, transpose_b, accumulate, bias, gelu, gelu_aux, dgelu, bias_grad;
    uint8_t align_a, align_b, align_d;
};

struct gemm_plan {
    struct gemm_key key;
    struct gemm_plan *next;
    bool fused; /* the epilogue is in the product */
    bool measured;
    cublasLtMatmulDesc_t op[2]; /* without and with the epilogue; op[1] NULL when not offered */
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

struct gemm_cache {
    struct gemm_plan **buckets;
    size_t bucket_count, plan_count;
};

/* One call: the plan and where its data is. d is another while measuring. */
struct gemm_call {
    struct device *dev;
    struct stream *s;
    const struct gemm *g;
    struct gemm_plan *plan;
    void *d;
    float *bias_grad;
};

static bool blas_ok(struct device *dev, cublasStatus_t rc, const struct gemm *g, const char *what)
{
    if (rc == CUBLAS_STATUS_SUCCESS)
        return true;
    device_fail(dev, "gemm", "%s for m=%lld n=%lld k=%lld: %s", what, (long long)g->m,
                (long long)g->n, (long long)g->k, cublasLtGetStatusString(rc));
    return false;
}

static cudaDataType_t blas_type(enum dtype dt)
{
    return dt == DTYPE_F32 ? CUDA_R_32F : dt == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* Largest power of two up to 16 that divides the address. */
static uint8_t alignment_of(const void *p)
{
    uint8_t a = 16;
    while (a > 1 && (uintptr_t)p % a)
        a /= 2;
    return a;
}

static struct gemm_key key_of(const struct gemm *g)
{
    struct gemm_key k;
    memset(&k, 0, sizeof k);
    k.m = g->m, k.n = g->n, k.k = g->k;
    k.lda = g->lda ? g->lda : g->transpose_a ? g->m : g->k;
    k.ldb = g->ldb ? g->ldb : g->transpose_b ? g->k : g->n;
    k.ldd = g->ldd ? g->ldd : g->n;
    k.dt = g->dt, k.out_dt = g->out_dt;
    k.transpose_a = g->transpose_a, k.transpose_b = g->transpose_b, k.accumulate = g->accumulate;
    k.bias = g->bias != NULL, k.gelu = g->gelu, k.gelu_aux = g->gelu_aux != NULL;
    k.dgelu = g->dgelu_aux != NULL;
    k.bias_grad = g->bias_grad != NULL;
    k.align_a = alignment_of(g->a), k.align_b = alignment_of(g->b), k.align_d = alignment_of(g->d);
    return k;
}

static size_t hash_of(const struct gemm_key *k)
{
    const unsigned char *p = (const unsigned char *)k;
    uint64_t h = 1469598103934665603ull; /* FNV-1a */
    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ p[i]) * 1099511628211ull;
    return (size_t)(h ^ h >> 32);
}

enum status gemm_cache_create(struct gemm_cache **out, struct error *e)
{
    struct gemm_cache *c = calloc(1, sizeof *c);
    *out = NULL;
    if (c)
        c->buckets = calloc(FIRST_BUCKETS, sizeof(struct gemm_plan *));
    if (!c || !c->buckets) {
        free(c);
        return error_memory(e, sizeof *c, "the plans of matrix products");
    }
    c->bucket_count = FIRST_BUCKETS;
    *out = c;
    return STATUS_OK;
}

static void plan_free(struct gemm_plan *p)
{
    for (int i = 0; i < 2; i++)
        if (p->op[i])
            cublasLtMatmulDescDestroy(p->op[i]);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->d)
        cublasLtMatrixLayoutDestroy(p->d);
    free(p);
}

void gemm_cache_destroy(struct gemm_cache *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->bucket_count; i++)
        for (struct gemm_plan *p = c->buckets[i], *next; p; p = next) {
            next = p->next;
            plan_free(p);
        }
    free(c->buckets);
    free(c);
}

/* The epilogue's name in cuBLASLt; DEFAULT when there is none or it has no name for this mix. */
static cublasLtEpilogue_t epilogue_of(const struct gemm_key *k)
{
    if (k->out_dt != k->dt && (k->bias || k->gelu || k->dgelu))
        return CUBLASLT_EPILOGUE_DEFAULT;
    if (k->dt == DTYPE_F32 && (k->gelu || k->dgelu))
        return CUBLASLT_EPILOGUE_DEFAULT; /* its tanh is good to 1e-4 only */
    if (k->bias_grad)
        return k->bias || k->gelu || k->dgelu || k->transpose_b ? CUBLASLT_EPILOGUE_DEFAULT
                                                                : CUBLASLT_EPILOGUE_BGRADA;
    if (k->dgelu)
        return k->bias || k->gelu || k->accumulate ? CUBLASLT_EPILOGUE_DEFAULT
                                                   : CUBLASLT_EPILOGUE_DGELU;
    if (k->gelu_aux)
        return k->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (k->gelu)
        return k->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return k->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(op, attribute, value, bytes);
}

static cublasStatus_t make_operation(cublasLtMatmulDesc_t *op, const struct gemm_key *k,
                                     cublasLtEpilogue_t epilogue)
{
    cublasOperation_t ta = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t tb = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t rc = cublasLtMatmulDescCreate(op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set(*op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set(*op, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set(*op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (rc == CUBLAS_STATUS_SUCCESS && (k->gelu_aux || k->dgelu) &&
        epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        rc = set(*op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->n, sizeof k->n);
    if (rc == CUBLAS_STATUS_SUCCESS && (k->bias || k->bias_grad)) {
        cudaDataType_t t = k->bias_grad ? CUDA_R_32F : blas_type((enum dtype)k->dt);
        rc = set(*op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &t, sizeof t);
    }
    return rc;
}

static cublasStatus_t make_layout(cublasLtMatrixLayout_t *layout, enum dtype dt, int64_t rows,
                                  int64_t columns, int64_t ld)
{
    return cublasLtMatrixLayoutCreate(layout, blas_type(dt), (uint64_t)rows, (uint64_t)columns, ld);
}

/* Where this call's epilogue data is. */
static cublasStatus_t set_pointers(cublasLtMatmulDesc_t op, const struct gemm *g, float *bias_grad)
{
    const void *bias = bias_grad ? bias_grad : g->bias;
    const void *aux = g->gelu_aux ? g->gelu_aux : g->dgelu_aux;
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    if (bias)
        rc = set(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (rc == CUBLAS_STATUS_SUCCESS && aux)
        rc = set(op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
    return rc;
}

/* cuBLASLt's proposals, best first by its own model; the number, 0 when it cannot. */
static int proposals(struct cuda_device *cuda, const struct gemm_plan *p, int fused,
                     cublasLtMatmulHeuristicResult_t *results)
{
    cublasLtMatmulPreference_t preference;
    size_t workspace = CUDA_WORKSPACE_BYTES;
    uint32_t a = p->key.align_b, b = p->key.align_a, d = p->key.align_d;
    int found = 0;
    if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 0;
    bool ok = true;
#define PREFER(attribute, value)                                                   \
    ok = ok && cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, \
                                                    sizeof value) == CUBLAS_STATUS_SUCCESS
    PREFER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d);
    PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d);
#undef PREFER
    if (ok &&
        cublasLtMatmulAlgoGetHeuristic(cuda->blas, p->op[fused], p->a, p->b, p->d, p->d, preference,
                                       CANDIDATES, results, &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    return ok ? found : 0;
}

/* The part of the epilogue that the product did not do. */
static void finish(const struct gemm_call *c, bool fused)
{
    const struct gemm *g = c->g;
    const struct gemm_key *k = &c->plan->key;
    if (fused && g->bias_grad) { /* the product wrote the sums apart */
        cuda_ok(c->dev, "gemm",
                cuda_add_partials(c->s->handle, g->bias_grad, c->bias_grad, 1, g->n, g->n));
        return;
    }
    if (fused)
        return;
    if (k->bias || k->gelu || k->dgelu)
        cuda_ok(c->dev, "gemm",
                cuda_epilogue(c->s->handle, c->d, g->out_dt, g->bias, g->gelu, g->gelu_aux,
                              g->dgelu_aux, g->dt, g->m, g->n, k->ldd));
    for (int64_t n0 = 0; g->bias_grad && n0 < g->n; n0 += COLUMN_CHUNK) {
        const char *b = (const char *)g->b + n0 * (int64_t)dtype_bytes(g->dt);
        cuda_ok(c->dev, "gemm",
                cuda_column_sums(c->s->handle, g->bias_grad + n0, b, g->k,
                                 min_i64(COLUMN_CHUNK, g->n - n0), k->ldb, g->dt, c->s->workspace));
    }
}

static cublasStatus_t multiply(const struct gemm_call *c, int fused,
                               const cublasLtMatmulAlgo_t *algo)
{
    const struct gemm_plan *p = c->plan;
    float alpha = 1.0f, beta = c->g->accumulate ? 1.0f : 0.0f;
    cublasStatus_t rc = CUBLAS_STATUS_SUCCESS;
    if (p->op[fused] == p->op[1])
        rc = set_pointers(p->op[1], c->g, c->bias_grad);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return rc;
    return cublasLtMatmul(cuda_of(c->dev)->blas, p->op[fused], &alpha, c->g->b, p->a, c->g->a, p->b,
                          &beta, c->d, p->d, c->d, p->d, algo, c->s->workspace,
                          CUDA_WORKSPACE_BYTES, c->s->handle);
}

/* Fastest of RUNS runs of the product alone; < 0 when the algorithm does not run. */
static float time_algorithm(const struct gemm_call *c, const cublasLtMatmulAlgo_t *algo,
                            cudaEvent_t begin, cudaEvent_t end)
{
    float best = -1.0f;
    for (int i = 0; i < RUNS + 1; i++) { /* the first run warms up */
        float ms = 0.0f;
        cudaEventRecord(begin, c->s->handle);
        if (multiply(c, c->plan->fused, algo) != CUBLAS_STATUS_SUCCESS)
            return -1.0f;
        cudaEventRecord(end, c->s->handle);
        if (cudaEventSynchronize(end) != cudaSuccess ||
            cudaEventElapsedTime(&ms, begin, end) != cudaSuccess)
            return -1.0f;
        if (i > 0 && (best < 0.0f || ms < best))
            best = ms;
        if (i == 1 && ms > 2.0f)
            break;
    }
    return best;
}

/* Outputs to measure with: the caller's own stays as it is. */
struct trial {
    void *d[2];     /* [0] the first proposal's result, [1] the candidate's */
    float *sums[2]; /* likewise for a fused bias gradient */
    size_t bytes, sums_bytes;
    cudaEvent_t begin, end;
};

static void trial_release(struct trial *t)
{
    for (int i = 0; i < 2; i++) {
        cudaFree(t->d[i]);
        cudaFree(t->sums[i]);
    }
    if (t->begin)
        cudaEventDestroy(t->begin);
    if (t->end)
        cudaEventDestroy(t->end);
}

/* False when there is no memory to spare, which is not a failure of the product. */
static bool trial_init(struct trial *t, const struct gemm_call *c)
{
    bool ok = true;
    memset(t, 0, sizeof *t);
    t->bytes = (size_t)(c->plan->key.m * c->plan->key.ldd) * dtype_bytes(c->g->out_dt);
    t->sums_bytes = c->bias_grad ? (size_t)c->g->n * sizeof(float) : 0;
    for (int i = 0; i < 2 && ok; i++) {
        ok = cudaMalloc(&t->d[i], t->bytes) == cudaSuccess;
        if (ok && t->sums_bytes)
            ok = cudaMalloc((void **)&t->sums[i], t->sums_bytes) == cudaSuccess;
    }
    ok = ok && cudaEventCreate(&t->begin) == cudaSuccess && cudaEventCreate(&t->end) == cudaSuccess;
    if (!ok)
        (void)cudaGetLastError();
    return ok;
}

/* The product from zero into trial output `which`. */
static bool trial_run(const struct trial *t, const struct gemm_call *c, int which,
                      const cublasLtMatmulAlgo_t *algo)
{
    struct gemm_call call = *c;
    call.d = t->d[which], call.bias_grad = t->sums[which];
    return cudaMemsetAsync(call.d, 0, t->bytes, c->s->handle) == cudaSuccess &&
           multiply(&call, c->plan->fused, algo) == CUBLAS_STATUS_SUCCESS;
}

/* Whether the candidate gives the first proposal's bits. */
static bool trial_equal(const struct trial *t, const struct gemm_call *c,
                        const cublasLtMatmulAlgo_t *algo)
{
    cudaStream_t s = c->s->handle;
    int32_t differs = 1;
    return trial_run(t, c, 1, algo) &&
           cudaMemsetAsync(c->s->flag, 0, sizeof differs, s) == cudaSuccess &&
           cuda_compare(s, c->s->flag, t->d[0], t->d[1], t->bytes) == cudaSuccess &&
           cuda_compare(s, c->s->flag, t->sums[0], t->sums[1], t->sums_bytes) == cudaSuccess &&
           cudaMemcpyAsync(&differs, c->s->flag, sizeof differs, cudaMemcpyDeviceToHost, s) ==
               cudaSuccess &&
           cudaStreamSynchronize(s) == cudaSuccess && !differs;
}

/* Measures the proposals and keeps the fastest of those that give the same bits as the first, so
 * that the choice, which depends on noise, never shows in a result. */
static void measure(struct gemm_call *c)
{
    struct gemm_plan *p = c->plan;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    struct trial t;
    float best = -1.0f;
    p->measured = true;
    int found = proposals(cuda_of(c->dev), p, p->fused, results);
    if (trial_init(&t, c) && found > 0 && trial_run(&t, c, 0, &results[0].algo)) {
        struct gemm_call timed = *c;
        timed.d = t.d[1], timed.bias_grad = t.sums[1];
        for (int i = 0; i < found; i++) {
            float ms = time_algorithm(&timed, &results[i].algo, t.begin, t.end);
            if (ms < 0.0f || (best >= 0.0f && ms > best * 0.99f) ||
                (i > 0 && !trial_equal(&t, c, &results[i].algo)))
                continue;
            best = ms;
            p->algo = results[i].algo;
        }
    }
    trial_release(&t);
}

static bool plan_fill(struct device *dev, struct gemm_plan *p, const struct gemm *g)
{
    const struct gemm_key *k = &p->key;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    cublasLtEpilogue_t epilogue = epilogue_of(k);
    bool ta = k->transpose_a, tb = k->transpose_b;
    if (!blas_ok(dev, make_operation(&p->op[0], k, CUBLASLT_EPILOGUE_DEFAULT), g, "describing") ||
        !blas_ok(dev, make_layout(&p->a, g->dt, tb ? k->k : k->n, tb ? k->n : k->k, k->ldb), g,
                 "layout of b") ||
        !blas_ok(dev, make_layout(&p->b, g->dt, ta ? k->m : k->k, ta ? k->k : k->m, k->lda), g,
                 "layout of a") ||
        !blas_ok(dev, make_layout(&p->d, g->out_dt, k->n, k->m, k->ldd), g, "layout of d"))
        return false;
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
        if (!blas_ok(dev, make_operation(&p->op[1], k, epilogue), g, "describing the epilogue"))
            return false;
        /* The heuristic looks at the pointers' presence. */
        if (!blas_ok(dev, set_pointers(p->op[1], g, g->bias_grad), g, "epilogue"))
            return false;
        if (proposals(cuda_of(dev), p, 1, results) > 0) {
            p->algo = results[0].algo;
            p->fused = true;
            return true;
        }
        cublasLtMatmulDescDestroy(p->op[1]); /* not offered for this shape: done by our kernels */
        p->op[1] = NULL;
    }
    if (proposals(cuda_of(dev), p, 0, results) == 0)
        return blas_ok(dev, CUBLAS_STATUS_NOT_SUPPORTED, g, "finding an algorithm");
    p->algo = results[0].algo;
    p->fused = false;
    return true;
}

/* Twice the buckets when they are on average full. Failing to grow only makes searching slower. */
static void cache_grow(struct gemm_cache *c)
{
    size_t count = 2 * c->bucket_count;
    struct gemm_plan **buckets = calloc(count, sizeof *buckets);
    if (!buckets)
        return;
    for (size_t i = 0; i < c->bucket_count; i++)
        for (struct gemm_plan *p = c->buckets[i], *next; p; p = next) {
            size_t at = hash_of(&p->key) & (count - 1);
            next = p->next;
            p->next = buckets[at];
            buckets[at] = p;
        }
    free(c->buckets);
    c->buckets = buckets;
    c->bucket_count = count;
}

static struct gemm_plan *plan_for(struct device *dev, const struct gemm *g)
{
    struct gemm_cache *c = cuda_of(dev)->gemms;
    struct gemm_key key = key_of(g);
    size_t hash = hash_of(&key);
    for (struct gemm_plan *p = c->buckets[hash & (c->bucket_count - 1)]; p; p = p->next)
        if (memcmp(&p->key, &key, sizeof key) == 0)
            return p;
    struct gemm_plan *p = calloc(1, sizeof *p);
    if (!p) {
        device_fail(dev, "gemm", "out of memory for a plan");
        return NULL;
    }
    p->key = key;
    if (!plan_fill(dev, p, g)) {
        plan_free(p);
        return NULL;
    }
    if (++c->plan_count > c->bucket_count)
        cache_grow(c);
    p->next = c->buckets[hash & (c->bucket_count - 1)];
    c->buckets[hash & (c->bucket_count - 1)] = p;
    return p;
}

static bool should_measure(const struct gemm_plan *p)
{
    const struct gemm_key *k = &p->key;
    bool regular = k->m % 8 == 0 && k->n % 8 == 0 && k->k % 8 == 0;
    return !p->measured && regular && 2.0 * (double)k->m * (double)k->n * (double)k->k >= 1e9;
}

void cuda_gemm(struct device *dev, struct stream *s, const struct gemm *g)
{
    if (!cuda_healthy(dev) || g->m == 0 || g->n == 0)
        return;
    if (g->bias_grad && g->transpose_b) {
        device_fail(dev, "gemm", "a bias gradient needs b not transposed");
        return;
    }
    if (!cuda_stream_workspace(dev, s, "gemm"))
        return;
    struct gemm_call c = {.dev = dev, .s = s, .g = g, .d = g->d};
    c.plan = plan_for(dev, g);
    if (!c.plan)
        return;
    c.bias_grad = g->bias_grad && c.plan->fused ? cuda_stream_sums(dev, s, g->n) : NULL;
    if (!cuda_healthy(dev))
        return;
    if (should_measure(c.plan))
        measure(&c);
    if (blas_ok(dev, multiply(&c, c.plan->fused, &c.plan->algo), g, "multiplying"))
        finish(&c, c.plan->fused);
}
