/* The MPI contestant of the pipeline of `samite bench video` (see video.h): one source for Open MPI and
 * MPICH, and the three variants of the S-DSM study.
 *
 * SAMITE_BENCH_VIDEO has the words
 *   blocking, single, buffers  the source waits until a frame has left, has one on its way while the
 *                              next worker asks, or one for each worker
 *   naps                       waiting processes sleep 50 us between two looks, the shortest sleep of the
 *                              system by default, instead of looking all the time
 *   ahead                      a worker asks for the next frame before it computes one
 *   probing                    a worker looks for messages twice a millisecond while it computes: the
 *                              library moves long ones only when it is called
 *   planned                    the source knows the nodes, and plans the end as Samite's source does
 *
 * A worker asks for a frame; the source sends it from where it is in memory; the worker sends the result
 * to the sink while it receives the next frame. The number of a frame is in the tag.
 */
#include "mpi_peer.h"
#include "video.h"

enum { READY = 1, DONE = 2, NODE = 3, FRAME = 16, SLOTS = 2 };

static int is_way(const char *word)
{
    const char *way = getenv("SAMITE_BENCH_VIDEO");
    return way && strstr(way, word) != NULL;
}

/* Waits for one of several requests. */
static int any_of(int count, MPI_Request *requests, MPI_Status *status)
{
    int which = 0, is_done = 0;
    if (!is_way("naps")) {
        MPI_Waitany(count, requests, &which, status);
        return which;
    }
    struct timespec nap = { 0, 1 };
    for (;;) {
        MPI_Testany(count, requests, &which, &is_done, status);
        if (is_done)
            return which;
        nanosleep(&nap, NULL);
    }
}

static void finish(MPI_Request *request)
{
    MPI_Status status;
    any_of(1, request, &status);
}

static int receive(void *to, size_t bytes, int from, int tag, MPI_Status *status)
{
    MPI_Request request;
    MPI_Irecv(to, (int)bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
    any_of(1, &request, status);
    return status->MPI_SOURCE;
}

static void send(const void *from, size_t bytes, int to, int tag, MPI_Request *request)
{
    MPI_Isend(from, (int)bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, request);
}

static void source(const struct video *v, const unsigned char *ring)
{
    MPI_Request each[MOST_WORKERS];
    MPI_Status status;
    struct plan plan = { .ahead = is_way("ahead") ? SLOTS : 1 };
    int is_single = !is_way("buffers"), is_planned = is_way("planned");
    for (int w = 0; w < v->workers; w++)
        each[w] = MPI_REQUEST_NULL;
    for (long i = 0, ends = v->workers * (is_way("ahead") ? SLOTS : 1); i < v->frames || ends > 0;) {
        int to = receive(NULL, 0, MPI_ANY_SOURCE, READY, &status);
        int is_frame = i < v->frames && (!is_planned || is_given(v, &plan, to - 1, v->frames - i - 1));
        MPI_Request *sent = &each[is_single ? 0 : to - 1];
        finish(sent);
        send(ring + (size_t)(i % RING) * v->bytes, is_frame ? v->bytes : 0, to, is_frame ? FRAME + (int)i : DONE,
             sent);
        i += is_frame;
        ends -= !is_frame;
        if (is_way("blocking"))
            finish(sent);
    }
    MPI_Waitall(v->workers, each, MPI_STATUSES_IGNORE);
}

static void probe(void)
{
    int is_there;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
}

/* Asks for a frame, which comes into `to`. */
static void ask(unsigned char *to, const struct video *v, MPI_Request *coming)
{
    MPI_Request asked;
    MPI_Irecv(to, (int)v->bytes, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, coming);
    send(NULL, 0, 0, READY, &asked);
    finish(&asked);
}

static void worker(const struct video *v)
{
    unsigned char *in[SLOTS], *out[SLOTS];
    MPI_Request coming[SLOTS], going[SLOTS];
    MPI_Status status;
    struct node node = { .worker = rank - 1 };
    int slots = is_way("ahead") ? SLOTS : 1, sink = ranks - 1;
    for (int s = 0; s < SLOTS; s++) {
        in[s] = take_frames(v->bytes);
        out[s] = take_frames(v->bytes);
        coming[s] = going[s] = MPI_REQUEST_NULL;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int s = 0; s < slots; s++)
        ask(in[s], v, &coming[s]);
    for (long i = 0, ends = 0; ends < slots; i++) {
        int s = (int)(i % slots), o = (int)(i % SLOTS);
        any_of(1, &coming[s], &status);
        if (status.MPI_TAG == DONE) {
            ends++;
            continue;
        }
        finish(&going[o]);
        compute(v, in[s], out[o], &node, is_way("probing") ? probe : NULL);
        send(out[o], v->bytes, sink, status.MPI_TAG, &going[o]);
        ask(in[s], v, &coming[s]);
    }
    node.left = now();
    for (int s = 0; s < SLOTS; s++) {
        finish(&going[s]);
        drop_frames(in[s], v->bytes);
        drop_frames(out[s], v->bytes);
    }
    /* So short that it leaves at once: nobody who is done keeps a processor from the others. */
    MPI_Send(&node, sizeof node, MPI_BYTE, 0, NODE, MPI_COMM_WORLD);
}

/* Buffers that are used again. */
static unsigned char *spare[1024];
static int spares;

static unsigned char *take_spare(size_t bytes)
{
    return spares ? spare[--spares] : take_frames(bytes);
}

static void sink(const struct video *v)
{
    static unsigned char *early[LATE];
    struct outcome o = {0};
    MPI_Request coming[SLOTS];
    unsigned char *in[SLOTS];
    long posted = 0, turn = 0;
    for (int s = 0; s < SLOTS; s++) {
        coming[s] = MPI_REQUEST_NULL;
        in[s] = take_frames(v->bytes);
    }
    for (long early = early_of(v); spares < early && spares < 1024; spares++)
        spare[spares] = take_frames(v->bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int s = 0; s < SLOTS && posted < v->frames; s++, posted++)
        MPI_Irecv(in[s], (int)v->bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &coming[s]);
    for (long received = 0; received < v->frames; received++) {
        MPI_Status status;
        int s = any_of(SLOTS, coming, &status);
        double begin = now();
        o.counts[status.MPI_SOURCE - 1]++;
        early[(status.MPI_TAG - FRAME) % LATE] = in[s];
        if (posted++ < v->frames) {
            in[s] = take_spare(v->bytes);
            MPI_Irecv(in[s], (int)v->bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &coming[s]);
        } else
            in[s] = NULL;
        for (unsigned char **next; *(next = &early[turn % LATE]); turn++) {
            o.checksum = chain(o.checksum, hash(*next, v->bytes));
            if (spares < 1024)
                spare[spares++] = *next;
            else
                drop_frames(*next, v->bytes);
            *next = NULL;
        }
        o.busy += now() - begin;
    }
    o.end = now();
    MPI_Send(&o, sizeof o, MPI_BYTE, 0, DONE, MPI_COMM_WORLD);
    for (int s = 0; s < SLOTS; s++)
        drop_frames(in[s], v->bytes);
    while (spares)
        drop_frames(spare[--spares], v->bytes);
}

/* Rank 0 returns the seconds. */
static double pipeline(const struct video *v)
{
    if (rank == ranks - 1)
        sink(v);
    else if (rank)
        worker(v);
    if (rank) {
        remember(v, 0, 0, 1);
        return 0;
    }
    unsigned char *ring = make_ring(v);
    struct outcome o = {0};
    struct node nodes[MOST_WORKERS];
    MPI_Status status;
    uint64_t expected = sequential(v, ring);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    source(v, ring);
    receive(&o, sizeof o, ranks - 1, DONE, &status);
    for (int w = 0; w < v->workers; w++)
        receive(&nodes[w], sizeof *nodes, w + 1, NODE, &status);
    double wall = o.end - start;
    remember(v, wall, deviation_of(v, &o), o.checksum == expected);
    describe(v, start, &o, nodes, 3);
    drop_frames(ring, RING * v->bytes);
    return wall;
}

static const char *refusal(const struct command *k)
{
    struct video v;
    if (strcmp(k->name, "video") || !is_figure(k->what))
        return "unsupported";
    if (k->width * k->height >= INT_MAX)
        return "unsupported";
    return video_of(k, ranks - 2, &v) ? NULL : "error the command has not as many times as there are workers";
}

static double run(const struct command *k, int *good)
{
    struct video v;
    video_of(k, ranks - 2, &v);
    double wall = -1;
    if (!strcmp(k->what, "wall") || !is_past(&v))
        wall = pipeline(&v);
    *good = !past.is_wrong;
    if (!strcmp(k->what, "run")) {
        said = past.last;
        return 0;
    }
    return figure_of(k->what, &v, wall);
}

static void let_go(void)
{
}
