/* mpi_sum.h - combining the parts that ranks sent, in rank order and in fp32. */
#ifndef COMM_MPI_SUM_H
#define COMM_MPI_SUM_H

#include "base/dtype.h"
#include "comm/comm.h"

/* out[i] = op over r of parts[r][i], r = 0..n-1 in this order, accumulated in fp32 and rounded
 * once. out may be one of the parts. dt is DTYPE_F32 or DTYPE_BF16. Max keeps NaN. */
void reduce_in_order(void *out, const void *const *parts, int n, int64_t count, enum dtype dt,
                     enum comm_reduce op);

#endif
