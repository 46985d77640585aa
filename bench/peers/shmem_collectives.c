/* Collective operations over OpenSHMEM 1.4. All data lie in symmetric memory, so there is one kind.
 * Each call has one of two work areas in turn, since an area may be used again only when all ranks
 * have left the call before.
 */
#include "shmem_peer.h"
#include "collectives.h"

static long *areas[2];
static double *work;
static size_t worked;
static unsigned turn;

static long *area(void)
{
    size_t words = SHMEM_REDUCE_SYNC_SIZE;
    if (words < SHMEM_BCAST_SYNC_SIZE)
        words = SHMEM_BCAST_SYNC_SIZE;
    if (words < SHMEM_ALLTOALL_SYNC_SIZE)
        words = SHMEM_ALLTOALL_SYNC_SIZE;
    for (int a = 0; a < 2 && !areas[a]; a++) {
        areas[a] = symmetric(words * sizeof(long));
        for (size_t i = 0; i < words; i++)
            areas[a][i] = SHMEM_SYNC_VALUE;
        meet();
    }
    return areas[turn++ % 2];
}

static void *take(int kind, size_t bytes)
{
    return kind == 0 ? symmetric(bytes) : NULL;
}

static void give_back(int kind, void *p, size_t bytes)
{
    shmem_free(p);
}

static void let_go(void)
{
}

static void allreduce(double *out, double *in, size_t bytes)
{
    int count = (int)(bytes / sizeof *out);
    size_t needed = (size_t)count / 2 + 1;
    if (needed < SHMEM_REDUCE_MIN_WRKDATA_SIZE)
        needed = SHMEM_REDUCE_MIN_WRKDATA_SIZE;
    if (worked < needed) {
        if (work)
            shmem_free(work);
        work = symmetric(needed * sizeof *work);
        worked = needed;
    }
    shmem_double_sum_to_all(in, out, count, 0, 0, ranks, work, area());
}

static void bcast(unsigned char *data, size_t bytes)
{
    shmem_broadcast64(data, data, bytes / 8, 0, 0, 0, ranks, area());
}

static void alltoall(unsigned char *out, unsigned char *in, size_t bytes)
{
    shmem_alltoall64(in, out, bytes / 8, 0, 0, ranks, area());
}
