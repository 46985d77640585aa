/* What the MPI peers of the benches share: start, commands, verdict. A peer includes this file,
 * once, and defines `refusal`, `run` and `let_go`.
 */
#ifndef SAMITE_BENCH_MPI_PEER_H
#define SAMITE_BENCH_MPI_PEER_H

#include "peer.h"
#include <limits.h>
#include <mpi.h>

static int rank, ranks;

/* What rank 0 answers in place of a number, if run() has set it. */
static const char *said;

/* NULL for a command that this peer has, else the answer to it. */
static const char *refusal(const struct command *k);

/* Every rank runs the command; rank 0 returns its answer and sets `good` to whether the data of
 * all ranks arrived whole. */
static double run(const struct command *k, int *good);

/* Frees what the peer has held all the time. */
static void let_go(void);

/* Rank 0 learns whether all found their data whole. */
static int all_intact(int mine)
{
    int all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

static inline void meet(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static inline int as_rank_0(int choice)
{
    MPI_Bcast(&choice, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return choice;
}

/* Rank 0 learns what another rank measured. */
static inline double from_rank(int who, double value)
{
    MPI_Bcast(&value, 1, MPI_DOUBLE, who, MPI_COMM_WORLD);
    return value;
}

/* Known before MPI_Init, so that the library's own memory is placed after pinning. */
static int early_rank(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_RANK");
    if (!text)
        text = getenv("PMI_RANK");
    return text ? atoi(text) : 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    die_with_parent();
    pin(early_rank());
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct control c = control_open(argv[1], rank);
    MPI_Barrier(MPI_COMM_WORLD);
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        const char *no = k.bytes < INT_MAX ? refusal(&k) : "unsupported";
        if (no) {
            answer(&c, no);
            continue;
        }
        int good = 1;
        said = NULL;
        double value = run(&k, &good);
        if (good && said)
            answer(&c, said);
        else if (good)
            answer_number(&c, value);
        else
            answer(&c, "error the data that arrived is not the data that was sent");
    }
    let_go();
    MPI_Finalize();
    return 0;
}

#endif
