/* What the OpenSHMEM peers of the benches share: start, commands, verdict. A peer includes this
 * file, once, and defines `refusal`, `run` and `let_go`.
 */
#ifndef SAMITE_BENCH_SHMEM_PEER_H
#define SAMITE_BENCH_SHMEM_PEER_H

#include "peer.h"
#include <limits.h>
#include <shmem.h>

static int rank, ranks;

/* NULL for a command that this peer has, else the answer to it. */
static const char *refusal(const struct command *k);

/* Every rank runs the command; rank 0 returns its answer and sets `good` to whether the data of
 * all ranks arrived whole. */
static double run(const struct command *k, int *good);

/* Frees what the peer has held all the time. */
static void let_go(void);

static inline void meet(void)
{
    shmem_barrier_all();
}

/* Every rank learns whether all found their data whole. */
static int all_intact(int mine)
{
    static int bad;
    bad = 0;
    meet();
    if (!mine)
        shmem_int_atomic_add(&bad, 1, 0);
    meet();
    int all = shmem_int_g(&bad, 0) == 0;
    meet();
    return all;
}

/* Rank 0 learns what another rank measured. */
static inline double from_rank(int who, double value)
{
    static double measured;
    measured = value;
    meet();
    double theirs = shmem_double_g(&measured, who);
    meet();
    return theirs;
}

static void *symmetric(size_t bytes)
{
    void *p = shmem_align(4096, (bytes + 4095) & ~(size_t)4095);
    if (!p)
        die("shmem_align");
    memset(p, 0, bytes);
    return p;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    die_with_parent();
    /* Known before the start, so that the library's own memory is placed after pinning. */
    const char *early = getenv("OMPI_COMM_WORLD_RANK");
    pin(early ? atoi(early) : 0);
    shmem_init();
    rank = shmem_my_pe();
    ranks = shmem_n_pes();
    struct control c = control_open(argv[1], rank);
    meet();
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        const char *no = k.bytes < INT_MAX ? refusal(&k) : "unsupported";
        if (no) {
            answer(&c, no);
            continue;
        }
        int good = 1;
        double value = run(&k, &good);
        if (good)
            answer_number(&c, value);
        else
            answer(&c, "error the data that arrived is not the data that was sent");
    }
    let_go();
    shmem_finalize();
    return 0;
}

#endif
