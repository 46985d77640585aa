/* Collective operations over MPI. Memory of kind 0 is the C library's, kind 1 is that of
 * MPI_Alloc_mem.
 */
#include "mpi_peer.h"
#include "collectives.h"

static void *take(int kind, size_t bytes)
{
    void *p = NULL;
    if (kind == 0)
        return take_pages(bytes);
    MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &p);
    return p;
}

static void give_back(int kind, void *p, size_t bytes)
{
    if (kind == 0)
        free(p);
    else
        MPI_Free_mem(p);
}

static void let_go(void)
{
}

static void allreduce(double *out, double *in, size_t bytes)
{
    MPI_Allreduce(out, in, (int)(bytes / sizeof *out), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void bcast(unsigned char *data, size_t bytes)
{
    MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static void alltoall(unsigned char *out, unsigned char *in, size_t bytes)
{
    MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}
