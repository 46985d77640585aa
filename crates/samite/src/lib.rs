//! One memory for many processes: messages, global memory, streams of arrays, and a launcher.
//!
//! This is the only crate that a program depends on. A process started by `samite run` joins its
//! job with [`init`]; one started by hand joins a domain by name with [`join`], or is a domain of
//! one. `README.md` says how to install it, and `docs/tutorial.md` teaches it in half an hour.
//!
//! # Tasks
//!
//! * **Join, and find the other units**: [`init`], [`Fabric::job`], [`Fabric::program`],
//!   [`Identity`]. [Example](#join-and-find-the-others).
//! * **Send and receive messages**: [`Fabric::send`], [`Fabric::recv`], [`Match`],
//!   [`Fabric::recv_vec`], [`Fabric::recv_view`]. [Example](#send-a-message).
//! * **Have many transfers under way**: [`Fabric::scope`], [`Scope`], [`Handle`], [`wait_all`].
//!   [Example](#have-many-transfers-under-way).
//! * **Call a function of another unit**: [`Fabric::on`], [`Fabric::tell`], [`Fabric::request`].
//!   [Example](#call-a-function-of-another-unit).
//! * **Notify another unit, or wait for all**: [`Fabric::signal`], [`Fabric::await_signal`],
//!   [`Fabric::barrier`]. Example: [`Fabric::signal`].
//! * **Access memory of another process**: [`Fabric::allocate`], [`Fabric::attach`], [`Segment`],
//!   [`Remote`], [`SharedBytes`]. [Example](#access-memory-of-another-process).
//! * **Share memory among the units of a program**: [`pgas::Pgas`], [`pgas::Team`],
//!   [`pgas::Segment`], [`pgas::GlobalPtr`]. [Example](#share-memory-among-units).
//! * **Share an array, with ghost cells**: [`pgas::array::Array`],
//!   [`Pattern`](pgas::array::Pattern), [`Halo`](pgas::array::Halo),
//!   [`Bounds`](pgas::array::Bounds). [Example](#share-an-array).
//! * **Share a hash table**: [`pgas::array::Map`]. Example: [`pgas::array::Map`].
//! * **Sum, broadcast, exchange over all units**: [`Team::all_reduce`](pgas::Team::all_reduce),
//!   [`broadcast`](pgas::Team::broadcast), [`all_to_all`](pgas::Team::all_to_all),
//!   [`Sum`](pgas::Sum), [`Op`](pgas::Op), [`Pending`](pgas::Pending).
//!   [Example](#compute-with-all-units).
//! * **Update one element atomically**: [`Segment::fetch_op`](pgas::Segment::fetch_op),
//!   [`pgas::Update`] ([`Update::Sum`](pgas::Update::Sum), ...), [`pgas::Updates`].
//!   [Example](#update-elements-atomically).
//! * **Exclude the other units for a while**: [`pgas::Lock`], [`pgas::GlobalLock`]. Example:
//!   [`pgas::GlobalLock`].
//! * **Store structures of your own**: [`pgas::Pod`], [`pgas::Zeroable`], [`bytemuck`].
//!   [Example](#store-structures).
//! * **Pass arrays to another program, step by step**: [`stage::Stage`], [`stage::Writer`],
//!   [`stage::Reader`], [`stage::Attribute`]. [Example](#stage-a-step).
//! * **Be told when an array was written**: [`Stage::watch`](stage::Stage::watch), [`stage::News`].
//!   Example: [`Stage::watch`](stage::Stage::watch).
//! * **Send code to where the data is**: [`mobile::Mobile`], the attribute
//!   [`#[mobile]`](macro@mobile::mobile), [`mobile::Capsule`]. [Example](#send-code-to-the-data).
//!   To the owner of a global pointer: [`GrantedSegment`].
//! * **Filter or reduce data where it is**: [`Map`], for streams and chunks. [`MovedOperator`], for
//!   reductions. Examples: [`Map`], [`MovedOperator`].
//! * **Show progress and results**: [`program::Reporter`], [`program::Summary`]. Example:
//!   [`program`].
//! * **Read settings, or change them in the program**: [`init_with`], [`FabricConfig`], [`config`].
//!   Example: [`config`].
//! * **Handle errors**: [`Error`], [`pgas::Error`], [`stage::Error`], [`ErrorCode`].
//!   [Example](#handle-errors).
//!
//! All examples here are complete: they are tests, in a job of one unit. Examples in the
//! documentation of single items name the crate of the item, such as `samite_pgas`: a program
//! writes [`samite::pgas`](pgas), [`samite::stage`](stage), and [`samite`](crate) in place of
//! `samite_fabric`.
//!
//! # Join, and find the others
//! ```
//! let fabric = samite::init()?; // once per process; parts of a program take clones
//! let units = fabric.job()?; // the peers to send to, one per unit, when all have joined
//! let own = fabric.identity();
//! println!("{}.{} of {}", own.program, own.rank, own.size);
//! assert_eq!(units[own.unit as usize], fabric.me());
//! # Ok::<(), samite::Error>(())
//! ```
//!
//! # Send a message
//! ```
//! use samite::Match;
//! # let fabric = samite::init()?;
//! # let peer = fabric.me();
//! fabric.send(peer, 7, b"woven")?; // the tag is 7
//! let mut buffer = [0; 16];
//! let status = fabric.recv(Match::from(peer, 7), &mut buffer)?;
//! assert_eq!(&buffer[..status.len as usize], b"woven");
//!
//! fabric.send(peer, 8, b"of any length")?;
//! let (status, bytes) = fabric.recv_vec(Match::any(8))?; // from any source
//! assert_eq!((status.from, &bytes[..]), (peer, &b"of any length"[..]));
//! # Ok::<(), samite::Error>(())
//! ```
//!
//! # Have many transfers under way
//! A scope lends buffers to its operations, and ends when all of them have ended. It returns the
//! result of its closure, whose error type can be any that is made from [`Error`], so name it:
//! `samite::Result<()>`, or `Result<(), Box<dyn std::error::Error>>`.
//! ```
//! use samite::Match;
//! # let fabric = samite::init()?;
//! # let (above, below) = (fabric.me(), fabric.me());
//! let row = vec![1_u8; 1 << 20];
//! let mut from_above = vec![0; row.len()];
//! fabric.scope(|scope| -> samite::Result<()> {
//!     scope.irecv(Match::from(above, 1), &mut from_above)?;
//!     scope.isend(below, 1, &row)?;
//!     Ok(())
//! })?;
//! assert_eq!(from_above, row);
//! # Ok::<(), samite::Error>(())
//! ```
//!
//! # Call a function of another unit
//! ```
//! # let fabric = samite::init()?;
//! # let peer = fabric.me();
//! fabric.on(3, |_from, bytes| Some(bytes.iter().rev().copied().collect())); // at the peer
//! let reply = fabric.request(peer, 3, b"abc")?.wait()?;
//! assert_eq!(reply, b"cba");
//! # Ok::<(), samite::Error>(())
//! ```
//!
//! # Access memory of another process
//! ```
//! # let fabric = samite::init()?;
//! let segment = fabric.allocate(4096)?; // shared memory, named by a key
//! let key = segment.key().to_bytes(); // send these 24 bytes to a peer, which does the rest
//! let remote = fabric.attach(samite::SegmentKey::from_bytes(&key))?;
//! remote.put(0, b"woven")?;
//! assert_eq!(remote.fetch_add(64, 1)?, 0);
//! assert_eq!(segment.bytes().u64(64).load(std::sync::atomic::Ordering::Relaxed), 1);
//! # Ok::<(), samite::Error>(())
//! ```
//!
//! # Share memory among units
//! ```
//! use samite::pgas::Pgas;
//! # let fabric = samite::init()?;
//! let pgas = Pgas::new(&fabric)?; // `Pgas::of_program` in a workflow of several programs
//! let world = pgas.world();
//! let cells = world.allocate::<f64>(1000)?; // at each unit
//! let right = (world.rank() + 1) % world.size();
//! cells.put(right, 10, &[1.0, 2.0])?; // elements 10 and 11 of the unit to the right
//! world.barrier()?;
//! assert_eq!(cells.get_value(right, 11)?, 2.0);
//!
//! let mut own = cells.into_local()?; // a phase in which each unit has its part as a slice
//! own.as_mut_slice().fill(0.5);
//! own.free()?;
//! # Ok::<(), samite::pgas::Error>(())
//! ```
//!
//! # Share an array
//! ```
//! use samite::pgas::Pgas;
//! use samite::pgas::array::{Array, Bounds, Halo, Pattern};
//! # let fabric = samite::init()?;
//! let pgas = Pgas::new(&fabric)?;
//! let world = pgas.world();
//! // 6 x 8 cells in blocks, one per unit, each with a ring of ghost cells.
//! let pattern = Pattern::block([6, 8], world.size())?.with_halo(Halo::new([1, 1]))?;
//! let mut plate = Array::<f64, 2>::new(world, pattern)?.into_local()?;
//! plate.fill_with(|[row, column]| (10 * row + column) as f64)?; // each unit its own block
//! plate.exchange_halo()?; // ghost cells become what the neighbours' cells are
//!
//! let plate = plate.into_shared()?; // now any unit reads and writes any box
//! let corner = Bounds::from([4..6, 6..8]); // or the ranges themselves
//! let mut four = [0.0; 4];
//! plate.get(corner, &mut four)?;
//! assert_eq!(four, [46.0, 47.0, 56.0, 57.0]);
//! assert_eq!(plate.max_element()?, Some((57.0, [5, 7])));
//! # plate.free()?;
//! # Ok::<(), samite::pgas::Error>(())
//! ```
//!
//! # Compute with all units
//! ```
//! use samite::pgas::{Located, MaxLoc, Op, Pgas, Sum};
//! # let fabric = samite::init()?;
//! let pgas = Pgas::new(&fabric)?;
//! let world = pgas.world();
//! let mut total = [0.0];
//! world.all_reduce(&[1.5], &mut total, Sum)?;
//! assert_eq!(total[0], 1.5 * f64::from(world.size()));
//!
//! let mut hottest = [Located::new(0.0, 0)]; // the greatest value, and where it is
//! let mine = Located::new(300.0, u64::from(world.rank()));
//! world.all_reduce(&[mine], &mut hottest, MaxLoc)?;
//! assert_eq!((hottest[0].value(), hottest[0].place()), (300.0, 0));
//!
//! let mut product = [0_u64]; // an operator of your own
//! world.all_reduce(&[3_u64], &mut product, Op::new(|a: u64, b: u64| a * b % 1_000_007))?;
//!
//! let pending = world.iall_reduce(vec![1_u64], Sum)?; // computes meanwhile ...
//! assert_eq!(pending.wait()?, [u64::from(world.size())]);
//! # Ok::<(), samite::pgas::Error>(())
//! ```
//!
//! # Update elements atomically
//! ```
//! use samite::pgas::{Pgas, Update};
//! # let fabric = samite::init()?;
//! let pgas = Pgas::new(&fabric)?;
//! let counters = pgas.world().allocate::<u64>(100)?;
//! let old = counters.fetch_op(0, 7, Update::Sum, 5)?; // element 7 at rank 0
//! counters.fetch_op(0, 7, Update::Max, 3)?;
//! assert_eq!((old, counters.get_value(0, 7)?), (0, 5));
//!
//! let mut updates = counters.updates(Update::Sum); // many, sent in batches
//! for index in 0..100 {
//!     updates.push(0, index, 1)?;
//! }
//! updates.finish()?;
//! assert_eq!(counters.get_value(0, 7)?, 6);
//! # counters.free()?;
//! # Ok::<(), samite::pgas::Error>(())
//! ```
//!
//! # Store structures
//! Elements of global memory are plain data: numbers, arrays of numbers, and structures without
//! padding of which every bit pattern is a value. Derive [`pgas::Pod`] and [`pgas::Zeroable`], and
//! name the crate to which the derived code refers: the package needs no `bytemuck` of its own.
//! ```
//! use samite::pgas::{Pgas, Pod, Zeroable};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
//! #[repr(C)]
//! #[bytemuck(crate = "samite::bytemuck")]
//! struct Particle {
//!     position: [f64; 3],
//!     number: u64,
//! }
//!
//! # let fabric = samite::init()?;
//! let pgas = Pgas::new(&fabric)?;
//! let particles = pgas.world().allocate::<Particle>(100)?;
//! let first = Particle { position: [0.5; 3], number: 1 };
//! particles.put_value(0, 0, first)?;
//! assert_eq!(particles.get_value(0, 0)?, first);
//!
//! let bytes = samite::bytemuck::bytes_of(&first); // for a message
//! assert_eq!(bytes.len(), 32);
//! # particles.free()?;
//! # Ok::<(), samite::pgas::Error>(())
//! ```
//!
//! # Stage a step
//! Writer and reader are usually two programs of a workflow. Here one process is both, so it says
//! which it is with `as_rank`; a program calls [`Stage::writer`](stage::Stage::writer) or
//! [`Stage::reader`](stage::Stage::reader).
//! ```
//! use samite::ndarray::Array2;
//! use samite::stage::{Attribute, Stage};
//! # let fabric = samite::init()?;
//! let stage = Stage::join(&fabric)?;
//! let mut writer = stage.write("field").as_rank("solver", 0, 1).open()?;
//! let rows = Array2::from_shape_fn((4, 6), |(y, x)| (10 * y + x) as f64);
//! let mut step = writer.step()?; // waits if the readers are too far behind
//! step.put("u", [4, 6], [0, 0], rows.view())?; // the whole array, and where this block begins
//! step.attribute("time", Attribute::Real(0.25));
//! step.commit()?;
//! writer.close()?; // otherwise the stream ends as failed
//!
//! for step in stage.read("field").as_rank("picture", 0, 1).open()? {
//!     let step = step?;
//!     let part: Array2<f64> = step.get("u", [1..3, 2..6])?;
//!     assert_eq!(part[[0, 0]], 12.0);
//!     assert_eq!(step.attribute("time"), Some(&Attribute::Real(0.25)));
//! }
//! # Ok::<(), samite::stage::Error>(())
//! ```
//!
//! # Send code to the data
//! ```
//! use samite::mobile::{Context, Mobile, Rights, Trap, mobile};
//!
//! #[mobile] // a function of this program and, if the target is installed, WebAssembly
//! fn sum(context: &mut Context, _: &[u8]) -> Result<(), Trap> {
//!     let mut total = 0_u64;
//!     for at in (0..context.len(0)?).step_by(8) {
//!         total = total.wrapping_add(context.load(0, at)?); // words of grant 0
//!     }
//!     context.reply(&total.to_le_bytes())
//! }
//!
//! # let fabric = samite::init()?;
//! let mobile = Mobile::new(&fabric)?;
//! sum::define(&mobile); // this unit runs the function itself
//! let segment = fabric.allocate(4096)?;
//! segment.bytes().write(8, &42_u64.to_le_bytes());
//! mobile.grant(0, segment.bytes(), Rights::Read);
//!
//! let code = mobile.register(sum::capsule()?)?; // it travels to units that lack it
//! let reply = mobile.call(0, &code, "sum", &[])?.wait()?;
//! assert_eq!(reply, 42_u64.to_le_bytes());
//! # Ok::<(), samite::mobile::Error>(())
//! ```
//!
//! # Handle errors
//! [`Error`] is that of messages and one-sided access; [`pgas::Error`] and [`stage::Error`] contain
//! it. A `main` that returns `Result<(), Box<dyn std::error::Error>>` takes all of them, and Rust
//! prints their sentences. [`Error::code`] and its like are numbers that do not change.
//! ```
//! use samite::{Error, Match};
//! use std::time::Duration;
//! # let fabric = samite::init()?;
//! # let peer = fabric.me();
//! let late = fabric.within(Duration::from_millis(10), || fabric.recv_vec(Match::from(peer, 7)));
//! let Err(error @ Error::Timeout { .. }) = late else { panic!("nobody has sent anything") };
//! assert_eq!(error.code().name(), "fabric.Timeout");
//! # Ok::<(), samite::Error>(())
//! ```
//!
//! # Numbers
//! Ranks, unit numbers, and numbers of units are `u32`. Indices and counts of elements, bytes and
//! steps are `u64`, on every machine. They are two types because most calls take both, as
//! `put(rank, index, ...)` does: exchanged arguments do not compile. `u64::from(rank)` converts.
//! `usize` is only for collections of this process: a list of peers, a slice, the dimensions of an
//! array.
//!
//! # Files
//! `unit` (how a process becomes a unit) · `config/` (layers of settings) · `calibration` (measured
//! rates of this host) · `granted` (moved code at the owner of a global pointer) · `map/` (moved
//! code on streams and chunks) · `operator` (moved code in reductions) · `program` (reports and
//! results of a program) · `python` (the Python environment)
#![forbid(unsafe_code)]

pub mod calibration;
pub mod config;
mod granted;
mod map;
mod operator;
pub mod program;
pub mod python;
mod unit;

/// Which types are plain data, and their casts, in the version that segments use: for
/// `#[bytemuck(crate = "samite::bytemuck")]` ([Store structures](crate#store-structures)).
#[doc(no_inline)]
pub use bytemuck;
pub use granted::GrantedSegment;
pub use map::{Map, MapError, Mapped};
/// The array library of streams, in the version that they use.
#[doc(no_inline)]
pub use ndarray;
pub use operator::{MovedOperator, OperatorError};
/// Coherent chunks.
#[doc(inline)]
pub use samite_dsm as dsm;
pub use samite_fabric::{
    Atomic, Config as FabricConfig, CostModel, Error, ErrorCode, Expected, Fabric, Handle,
    Identity, Link, Mask, Match, Named, PeerId, PeerInfo, PeerWait, Ptracer, Received, Remote,
    Result, Scope, Segment, SegmentKey, Sent, Status, UnitLife, View, Whom, Width, agent, has_ucx,
    test_all, transport, wait_all,
};
pub use samite_mem::{Pages, SharedBytes, host};
/// Code that travels to the data.
#[doc(inline)]
pub use samite_mobile as mobile;
/// Global memory.
#[doc(inline)]
pub use samite_pgas as pgas;
/// Streams of arrays between programs.
#[doc(inline)]
pub use samite_stage as stage;
pub use unit::{fabric_config, init, init_with, join, variable};

/// Returns the services that an agent hosts, in the order in which it polls them.
pub fn services() -> Vec<agent::Starter> {
    vec![stage::service::STARTER, dsm::service::STARTER]
}

/// Returns the folder for files that Samite can recreate: `samite` in `$XDG_CACHE_HOME`, otherwise
/// in `~/.cache`; `None` without a home directory.
pub fn cache_folder() -> Option<std::path::PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty());
    let cache = folder("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let cache = cache.or_else(|| Some(std::path::PathBuf::from(folder("HOME")?).join(".cache")));
    Some(cache?.join("samite"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_agent_serves_streams_and_chunks() {
        let names: Vec<&str> = super::services().iter().map(|one| one.name).collect();
        assert_eq!(names, ["staging", "chunks"]);
    }
}
