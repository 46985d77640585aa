/* A pointer chase by loads: rank 0 reads, one word after the other, a random cycle in the part of
 * rank 1 of a window of MPI_Win_allocate_shared, which MPI_Win_shared_query has given it.
 */
#include "mpi_peer.h"
#include "chase.h"

static MPI_Win win;
static uint64_t *table;

static void hold(void)
{
    if (table)
        return;
    make_cycle();
    MPI_Info apart;
    MPI_Info_create(&apart);
    MPI_Info_set(apart, "alloc_shared_noncontig", "true"); /* each part on pages of its own */
    uint64_t *mine;
    MPI_Win_allocate_shared(WORDS * sizeof *mine, sizeof *mine, apart, MPI_COMM_WORLD, &mine, &win);
    MPI_Info_free(&apart);
    memcpy(mine, cycle, WORDS * sizeof *mine);
    MPI_Aint size;
    int unit;
    MPI_Win_shared_query(win, 1, &size, &unit, &table);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    MPI_Win_sync(win);
    meet();
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
    MPI_Win_sync(win);
    for (long i = 0; i < depth; i++)
        at = *(volatile uint64_t *)&table[at];
    return at;
}
