/* One-sided operations over MPI: a window of MPI_Win_allocate, open all the time by
 * MPI_Win_lock_all. Blocking means MPI_Win_flush; "put_nb" is MPI_Rput and MPI_Wait. A strided
 * transfer has a vector datatype, or a put per block and one flush: whichever is faster here.
 */
#include "mpi_peer.h"
#include "onesided.h"

static MPI_Win win;
static size_t held;

static void let_go(void)
{
    if (!held)
        return;
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    free(origin);
    held = 0;
}

static void hold(size_t bytes)
{
    if (held >= bytes)
        return;
    let_go();
    held = bytes < 1 << 20 ? 1 << 20 : bytes;
    MPI_Win_allocate((MPI_Aint)held, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    memset(window, 0, held);
    origin = take_pages(held);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
}

static int offers(const struct command *k)
{
    return 1;
}

static void put_often(const struct command *k, long n)
{
    int bytes = (int)k->bytes;
    for (long i = 0; i < n; i++) {
        MPI_Put(origin, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, win);
        MPI_Win_flush(1, win);
    }
}

static void get_often(const struct command *k, long n)
{
    int bytes = (int)k->bytes;
    for (long i = 0; i < n; i++) {
        MPI_Get(origin, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, win);
        MPI_Win_flush(1, win);
    }
}

static void put_nb_often(const struct command *k, long n)
{
    int bytes = (int)k->bytes;
    for (long i = 0; i < n; i++) {
        MPI_Request request;
        MPI_Rput(origin, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, win, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Win_flush(1, win);
}

static long block, count;
static MPI_Datatype vector = MPI_DATATYPE_NULL;

static void stride(int way)
{
    if (way == 0)
        MPI_Put(origin, (int)(count * block), MPI_BYTE, 1, 0, 1, vector, win);
    else
        for (long b = 0; b < count; b++)
            MPI_Put(origin + b * block, (int)block, MPI_BYTE, 1, 2 * b * block, (int)block, MPI_BYTE,
                    win);
    MPI_Win_flush(1, win);
}

static void stride_some(int way)
{
    for (int i = 0; i < 50; i++)
        stride(way);
}

static void stride_often(const struct command *k, long n)
{
    static int way;
    if (block != k->bytes || count != k->window) {
        block = k->bytes;
        count = k->window;
        if (vector != MPI_DATATYPE_NULL)
            MPI_Type_free(&vector);
        MPI_Type_vector((int)count, (int)block, 2 * (int)block, MPI_BYTE, &vector);
        MPI_Type_commit(&vector);
        way = fastest(2, stride_some);
    }
    for (long i = 0; i < n; i++)
        stride(way);
}

static void add_often(const struct command *k, long n)
{
    uint64_t one = 1, old;
    for (long i = 0; i < n; i++) {
        MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, 1, 0, MPI_SUM, win);
        MPI_Win_flush(1, win);
    }
}
