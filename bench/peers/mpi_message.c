/* The MPI contestant of the benches: one source for Open MPI and MPICH.
 *
 * Every case: warm-up, barrier, timed loop on rank 0, then one more exchange
 * outside the timed loop that carries a pattern and is checked.
 */
#include "mpi_peer.h"

enum { TAG = 7, VERDICT = 8 };

struct pair {
    unsigned char *out, *in;
};

static unsigned char *take(const char *kind, size_t bytes)
{
    if (!strncmp(kind, "segment", 7)) {
        unsigned char *p;
        MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &p);
        memset(p, 1, bytes);
        return p;
    }
    return strcmp(kind, "hugepages") ? take_pages(bytes) : take_huge_pages(bytes);
}

static void give_back(const char *kind, unsigned char *p)
{
    if (!strncmp(kind, "segment", 7))
        MPI_Free_mem(p);
    else
        free(p);
}

static void ping_pong(struct pair b, int bytes, long rounds)
{
    if (rank == 0) {
        for (long i = 0; i < rounds; i++) {
            MPI_Send(b.out, bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(b.in, bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    } else {
        for (long i = 0; i < rounds; i++) {
            MPI_Recv(b.in, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(b.out, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

static int checked_round(struct pair b, int bytes)
{
    fill(b.out, bytes, (unsigned)rank);
    memset(b.in, 0, bytes);
    ping_pong(b, bytes, 1);
    return all_intact(intact(b.in, bytes, (unsigned)(1 - rank)));
}

/* Latency and bandwidth: send and receive buffers are apart, as in the OSU tests. */
static double warm_rounds(const struct command *k, int *good)
{
    struct pair b = { take(k->kind, k->bytes), take(k->kind, k->bytes) };
    ping_pong(b, (int)k->bytes, k->warmup);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    ping_pong(b, (int)k->bytes, k->iters);
    double elapsed = now() - start;
    *good = checked_round(b, (int)k->bytes);
    give_back(k->kind, b.out);
    give_back(k->kind, b.in);
    return elapsed;
}

/* New buffers every round; only the exchange itself is on the clock. */
static double cold_rounds(const struct command *k, int *good)
{
    double elapsed = 0;
    for (long i = -k->warmup; i <= k->iters; i++) {
        struct pair b = { take_cold(k->bytes), take_cold(k->bytes) };
        if (i == k->iters)
            fill(b.out, k->bytes, (unsigned)rank);
        else
            memset(b.out, 1, k->bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        ping_pong(b, (int)k->bytes, 1);
        if (i >= 0 && i < k->iters)
            elapsed += now() - start;
        if (i == k->iters)
            *good = all_intact(intact(b.in, k->bytes, (unsigned)(1 - rank)));
        munmap(b.out, k->bytes);
        munmap(b.in, k->bytes);
    }
    return elapsed;
}

static void windows(struct pair b, const struct command *k, MPI_Request *pending, long count)
{
    int ack = 0, bytes = (int)k->bytes, window = (int)k->window;
    for (long i = 0; i < count; i++) {
        if (rank == 0) {
            for (int w = 0; w < window; w++)
                MPI_Isend(b.out + (size_t)w * bytes, bytes, MPI_BYTE, 1, TAG, MPI_COMM_WORLD,
                          &pending[w]);
            MPI_Waitall(window, pending, MPI_STATUSES_IGNORE);
            MPI_Recv(&ack, 1, MPI_INT, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int w = 0; w < window; w++)
                MPI_Irecv(b.in + (size_t)w * bytes, bytes, MPI_BYTE, 0, TAG, MPI_COMM_WORLD,
                          &pending[w]);
            MPI_Waitall(window, pending, MPI_STATUSES_IGNORE);
            MPI_Send(&ack, 1, MPI_INT, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* Rate and stream: one direction, `window` messages in flight, then a small answer. */
static double window_rounds(const struct command *k, int *good)
{
    size_t size = (size_t)k->bytes * (size_t)k->window;
    struct pair b = { take_pages(size), take_pages(size) };
    MPI_Request *pending = malloc(sizeof *pending * (size_t)k->window);
    fill(b.out, size, (unsigned)rank);
    windows(b, k, pending, k->warmup);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    windows(b, k, pending, k->iters);
    double elapsed = now() - start;
    memset(b.in, 0, size);
    windows(b, k, pending, 1);
    *good = all_intact(rank == 0 || intact(b.in, size, 0));
    free(pending);
    free(b.out);
    free(b.in);
    return elapsed;
}

static double alltoall_rounds(const struct command *k, int *good)
{
    int bytes = (int)k->bytes, mine = 1;
    struct pair b = { take_pages((size_t)bytes * ranks), take_pages((size_t)bytes * ranks) };
    for (int to = 0; to < ranks; to++)
        fill(b.out + (size_t)to * bytes, bytes, (unsigned)(rank * ranks + to));
    double start = 0;
    for (long i = -k->warmup; i < k->iters; i++) {
        if (i == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            start = now();
        }
        MPI_Alltoall(b.out, bytes, MPI_BYTE, b.in, bytes, MPI_BYTE, MPI_COMM_WORLD);
    }
    double elapsed = now() - start;
    memset(b.in, 0, (size_t)bytes * ranks);
    MPI_Alltoall(b.out, bytes, MPI_BYTE, b.in, bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        mine &= intact(b.in + (size_t)from * bytes, bytes, (unsigned)(from * ranks + rank));
    *good = all_intact(mine);
    free(b.out);
    free(b.in);
    return elapsed;
}

/* Frames from memory of rank 0 to rank 1 and back, two on the way: one asynchronous buffer for
 * each. The kernel does nothing; `whole`: it copies, and rank 0 compares. */
static int frames(struct pair b, int bytes, long count, int whole)
{
    enum { SLOTS = 2 };
    MPI_Request sends[SLOTS] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL }, receives[SLOTS];
    int good = 1, other = 1 - rank;
    long begun = 0;
    for (long i = 0; i < count && i < SLOTS; i++)
        MPI_Irecv(b.in + (size_t)i * bytes, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &receives[i]);
    for (long i = 0; i < count; i++) {
        int slot = (int)(i % SLOTS);
        unsigned char *in = b.in + (size_t)slot * bytes, *out = b.out + (size_t)slot * bytes;
        for (; rank == 0 && begun < count && begun < i + SLOTS; begun++) {
            int next = (int)(begun % SLOTS);
            unsigned char *frame = b.out + (size_t)next * bytes;
            MPI_Wait(&sends[next], MPI_STATUS_IGNORE);
            memcpy(frame, &begun, sizeof begun);
            MPI_Isend(frame, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &sends[next]);
        }
        MPI_Wait(&receives[slot], MPI_STATUS_IGNORE);
        if (rank == 0) {
            good &= !memcmp(in, &i, sizeof i);
            good &= !whole || intact(in + sizeof i, (size_t)bytes - sizeof i, 0);
        } else {
            MPI_Wait(&sends[slot], MPI_STATUS_IGNORE);
            memcpy(out, in, whole ? (size_t)bytes : sizeof i);
            MPI_Isend(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &sends[slot]);
        }
        if (i + SLOTS < count)
            MPI_Irecv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &receives[slot]);
    }
    MPI_Waitall(SLOTS, sends, MPI_STATUSES_IGNORE);
    return good;
}

static double frame_rounds(const struct command *k, int *good)
{
    size_t bytes = (size_t)k->bytes;
    struct pair b = { take_huge_pages(2 * bytes), take_huge_pages(2 * bytes) };
    for (int slot = 0; slot < 2; slot++)
        fill(b.out + (size_t)slot * bytes + sizeof(long), bytes - sizeof(long), 0);
    int mine = frames(b, (int)bytes, k->warmup, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    mine &= frames(b, (int)bytes, k->iters, 0);
    double elapsed = now() - start;
    mine &= frames(b, (int)bytes, 2, 1);
    *good = all_intact(mine);
    free(b.out);
    free(b.in);
    return elapsed;
}

static double barrier_rounds(const struct command *k)
{
    for (long i = 0; i < k->warmup; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    for (long i = 0; i < k->iters; i++)
        MPI_Barrier(MPI_COMM_WORLD);
    return now() - start;
}

/* Processor seconds that rank 1 spends in a receive which rank 0 answers late. */
static double idle(const struct command *k)
{
    double spent = 0;
    char byte = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        struct timespec t = { (time_t)k->seconds,
                              (long)((k->seconds - (double)(time_t)k->seconds) * 1e9) };
        nanosleep(&t, NULL);
        MPI_Send(&byte, 1, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(&spent, 1, MPI_DOUBLE, 1, VERDICT, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        double before = cpu_seconds();
        MPI_Recv(&byte, 1, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        spent = cpu_seconds() - before;
        MPI_Send(&spent, 1, MPI_DOUBLE, 0, VERDICT, MPI_COMM_WORLD);
    }
    return spent;
}

static const char *refusal(const struct command *k)
{
    static const char *pairs[] = { "latency", "bandwidth", "rate", "stream", "idle", "frames" };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!strcmp(k->name, pairs[i]))
            return ranks == 2 ? NULL : "error this case needs two ranks";
    if (!strcmp(k->name, "alltoall") || !strcmp(k->name, "barrier"))
        return NULL;
    return "unsupported";
}

static double run(const struct command *k, int *good)
{
    if (!strcmp(k->name, "rate") || !strcmp(k->name, "stream"))
        return window_rounds(k, good);
    if (!strcmp(k->name, "frames"))
        return frame_rounds(k, good);
    if (!strcmp(k->name, "alltoall"))
        return alltoall_rounds(k, good);
    if (!strcmp(k->name, "barrier"))
        return barrier_rounds(k);
    if (!strcmp(k->name, "idle"))
        return idle(k);
    return strcmp(k->kind, "cold") ? warm_rounds(k, good) : cold_rounds(k, good);
}

static void let_go(void)
{
}
