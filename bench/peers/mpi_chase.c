/* A pointer chase by gets: rank 0 reads, one word after the other, a random cycle in the window of
 * rank 1. Each read is MPI_Get, or MPI_Fetch_and_op with MPI_NO_OP, whichever is faster, and a
 * flush.
 */
#include "mpi_peer.h"
#include <stdint.h>

enum { WORDS = 1 << 18 };

static MPI_Win win;
static uint64_t *table, *cycle;
static int way;

static void make_cycle(void)
{
    uint64_t x = 1;
    cycle = malloc(WORDS * sizeof *cycle);
    if (!cycle)
        die("malloc");
    for (uint64_t i = 0; i < WORDS; i++)
        cycle[i] = i;
    for (uint64_t i = WORDS - 1; i > 0; i--) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint64_t other = (x >> 33) % i, word = cycle[i];
        cycle[i] = cycle[other];
        cycle[other] = word;
    }
}

static uint64_t chase_by(int fetching, uint64_t at, long depth)
{
    static uint64_t nothing;
    for (long i = 0; i < depth; i++) {
        uint64_t next;
        if (fetching)
            MPI_Fetch_and_op(&nothing, &next, MPI_UINT64_T, 1, (MPI_Aint)at, MPI_NO_OP, win);
        else
            MPI_Get(&next, 1, MPI_UINT64_T, 1, (MPI_Aint)at, 1, MPI_UINT64_T, win);
        MPI_Win_flush(1, win);
        at = next;
    }
    return at;
}

static void try(int fetching)
{
    if (rank == 0)
        chase_by(fetching, 0, 1000);
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
    way = as_rank_0(fastest(2, try));
}

static void let_go(void)
{
    if (!table)
        return;
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
}

static int chase(uint64_t *start, long depth, long often)
{
    int good = 1;
    for (long i = 0; i < often; i++) {
        *start = (*start + 7919) % WORDS;
        uint64_t found = chase_by(way, *start, depth), right = *start;
        if (*start % 16)
            continue;
        for (long step = 0; step < depth; step++)
            right = cycle[right];
        good &= found == right;
    }
    return good;
}

static double run(const struct command *k, int *good)
{
    hold();
    double elapsed = 0;
    int mine = 1;
    uint64_t at = 0;
    meet();
    if (rank == 0) {
        mine &= chase(&at, k->bytes, k->warmup);
        double start = now();
        mine &= chase(&at, k->bytes, k->iters);
        elapsed = now() - start;
    }
    meet();
    *good = all_intact(mine);
    return elapsed;
}

static const char *refusal(const struct command *k)
{
    return strcmp(k->name, "chain") || ranks != 2 ? "unsupported" : NULL;
}
