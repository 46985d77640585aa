/* Random access over MPI. Plain updates are MPI_Accumulate or MPI_Fetch_and_op, whichever is faster,
 * and a flush per 1024; buckets are exchanged by MPI_Alltoall (their sizes) and MPI_Alltoallv.
 */
#include "mpi_peer.h"
#include "gups.h"

static MPI_Win win;
static int way;

static void update_by(int fetching, const uint64_t *randoms, long count)
{
    static uint64_t old[LOOK_AHEAD];
    for (long i = 0; i < count; i++) {
        MPI_Aint at = (MPI_Aint)place(randoms[i]);
        int who = owner(randoms[i]);
        if (fetching)
            MPI_Fetch_and_op(&randoms[i], &old[i], MPI_UINT64_T, who, at, MPI_BXOR, win);
        else
            MPI_Accumulate(&randoms[i], 1, MPI_UINT64_T, who, at, 1, MPI_UINT64_T, MPI_BXOR, win);
    }
    MPI_Win_flush_all(win);
}

static void try(int fetching)
{
    uint64_t randoms[LOOK_AHEAD], x = random_at(rank + 1);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < LOOK_AHEAD; i++)
            randoms[i] = x = next_random(x);
        update_by(fetching, randoms, LOOK_AHEAD);
    }
    meet();
}

static void hold(void)
{
    if (table)
        return;
    MPI_Info same;
    MPI_Info_create(&same);
    MPI_Info_set(same, "accumulate_ops", "same_op_no_op");
    MPI_Info_set(same, "accumulate_ordering", "none");
    MPI_Win_allocate(WORDS * sizeof *table, sizeof *table, same, MPI_COMM_WORLD, &table, &win);
    MPI_Info_free(&same);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    memset(table, 0, WORDS * sizeof *table);
    meet();
    way = as_rank_0(fastest(2, try));
}

static void let_go(void)
{
    if (!table)
        return;
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
}

static int offers(const struct command *k)
{
    return 1;
}

static void update(const uint64_t *randoms, long count)
{
    update_by(way, randoms, count);
}

static void exchange(uint64_t *const *buckets, const int *counts)
{
    static uint64_t arrived[MOST_RANKS * LOOK_AHEAD];
    int come[MOST_RANKS], from[MOST_RANKS], to[MOST_RANKS], total = 0;
    MPI_Alltoall(counts, 1, MPI_INT, come, 1, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) {
        to[r] = (int)(buckets[r] - buckets[0]);
        from[r] = total;
        total += come[r];
    }
    MPI_Alltoallv(buckets[0], counts, to, MPI_UINT64_T, arrived, come, from, MPI_UINT64_T,
                  MPI_COMM_WORLD);
    apply(arrived, total);
}
