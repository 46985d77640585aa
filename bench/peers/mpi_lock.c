/* The queue lock of the DART-MPI paper (section IV-B6) over MPI RMA: Mellor-Crummey and Scott's,
 * with the tail of the queue on rank 0 and the `next` of every rank in a window of its own. Who
 * finds a predecessor links itself behind it and waits for an empty message, which the predecessor
 * sends when it releases.
 */
#include "mpi_peer.h"
#include "lock.h"

enum { NOBODY = -1, WAKE = 11 };

static MPI_Win tails, nexts, counters;
static int *tail, *next;

/* A window with a word per rank, each on a page of its own: MPICH 4.0 confuses the ranks' parts where
 * they are smaller than a cache line. */
static MPI_Win allocate(int **base)
{
    MPI_Win win;
    MPI_Win_allocate(4096, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, base, &win);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    return win;
}

static void hold(void)
{
    if (counter)
        return;
    tails = allocate(&tail);
    nexts = allocate(&next);
    *tail = NOBODY; /* That of rank 0 is the lock's. */
    *next = NOBODY;
    MPI_Win_sync(tails);
    MPI_Win_sync(nexts);
    MPI_Aint bytes;
    int unit;
    MPI_Win_allocate_shared(4096, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &counters);
    MPI_Win_shared_query(counters, 0, &bytes, &unit, &counter);
    meet();
}

static void let_go(void)
{
    if (!counter)
        return;
    MPI_Win_unlock_all(tails);
    MPI_Win_unlock_all(nexts);
    MPI_Win_free(&tails);
    MPI_Win_free(&nexts);
    MPI_Win_free(&counters);
}

static void acquire(void)
{
    int predecessor, old;
    MPI_Fetch_and_op(&rank, &predecessor, MPI_INT, 0, 0, MPI_REPLACE, tails);
    MPI_Win_flush(0, tails);
    if (predecessor == NOBODY)
        return;
    MPI_Fetch_and_op(&rank, &old, MPI_INT, predecessor, 0, MPI_REPLACE, nexts);
    MPI_Win_flush(predecessor, nexts);
    MPI_Recv(NULL, 0, MPI_BYTE, predecessor, WAKE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void release(void)
{
    int nobody = NOBODY, last, successor;
    MPI_Compare_and_swap(&nobody, &rank, &last, MPI_INT, 0, 0, tails);
    MPI_Win_flush(0, tails);
    if (last == rank)
        return;
    /* Somebody has taken the tail and is about to link itself. */
    do {
        MPI_Fetch_and_op(NULL, &successor, MPI_INT, rank, 0, MPI_NO_OP, nexts);
        MPI_Win_flush(rank, nexts);
    } while (successor == NOBODY);
    *next = NOBODY;
    MPI_Win_sync(nexts);
    MPI_Send(NULL, 0, MPI_BYTE, successor, WAKE, MPI_COMM_WORLD);
}
