/* A pointer chase by gets: rank 0 reads, one word after the other, a random cycle in the window of
 * rank 1. Each read is MPI_Get and MPI_Win_flush_local, MPI_Get and MPI_Win_flush, or
 * MPI_Fetch_and_op with MPI_NO_OP and MPI_Win_flush, whichever is faster.
 */
#include "mpi_peer.h"
#include "chase.h"

static MPI_Win win;
static uint64_t *table;
static int way;

enum { LOCAL, REMOTE, FETCHING, WAYS };

static uint64_t chase_by(int by, uint64_t at, long depth)
{
    static uint64_t nothing;
    for (long i = 0; i < depth; i++) {
        uint64_t next;
        if (by == FETCHING)
            MPI_Fetch_and_op(&nothing, &next, MPI_UINT64_T, 1, (MPI_Aint)at, MPI_NO_OP, win);
        else
            MPI_Get(&next, 1, MPI_UINT64_T, 1, (MPI_Aint)at, 1, MPI_UINT64_T, win);
        if (by == LOCAL)
            MPI_Win_flush_local(1, win);
        else
            MPI_Win_flush(1, win);
        at = next;
    }
    return at;
}

static void try(int by)
{
    if (rank == 0)
        chase_by(by, 0, 1000);
    meet();
}

static void hold(void)
{
    if (table)
        return;
    make_cycle();
    MPI_Win_allocate(WORDS * sizeof *table, sizeof *table, MPI_INFO_NULL, MPI_COMM_WORLD, &table,
                     &win);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    memcpy(table, cycle, WORDS * sizeof *table);
    MPI_Win_sync(win);
    meet();
    way = as_rank_0(fastest(WAYS, try));
}

static void let_go(void)
{
    if (!table)
        return;
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
}

static uint64_t chase_once(uint64_t at, long depth)
{
    return chase_by(way, at, depth);
}
