//! The buffers of collectives: private slices or parts of symmetric memory.
//!
//! The caller's side is typed ([`Source`], [`Target`], [`Buffers`]); the executor moves bytes
//! ([`Input`], [`Output`]).

use crate::segment::Part;
use crate::{Elem, GlobalPtr, Result, Team};
use samite_mem::SharedBytes;
use std::borrow::Cow;

/// The source of a member: a slice, or a part of its symmetric memory, which the others then read
/// in place.
#[derive(Debug)]
pub enum Source<'a, T> {
    /// Private memory.
    Slice(&'a [T]),
    /// Symmetric memory.
    Part(Part<'a, T>),
}

/// The target of a member: a slice, or a part of its symmetric memory, which the others may then
/// write into. Source and target of a call may overlap, at the cost of a copy.
#[derive(Debug)]
pub enum Target<'a, T> {
    /// Private memory.
    Slice(&'a mut [T]),
    /// Symmetric memory.
    Part(Part<'a, T>),
}

/// Conversions into a source or a target, and their length.
macro_rules! forms {
    ($buffer:ident: $([$($n:ident)?] $from:ty => $form:ident,)+) => {
        $(impl<'a, T $(, const $n: usize)?> From<$from> for $buffer<'a, T> {
            fn from(buffer: $from) -> Self {
                $buffer::$form(buffer)
            }
        })+

        impl<T: Elem> $buffer<'_, T> {
            /// Returns the number of elements.
            pub fn len(&self) -> u64 {
                match self {
                    $buffer::Slice(slice) => slice.len() as u64,
                    $buffer::Part(part) => part.len(),
                }
            }

            /// Returns true if there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }
    };
}

forms! { Source:
    [] &'a [T] => Slice,
    [] &'a Vec<T> => Slice,
    [N] &'a [T; N] => Slice,
    [] Part<'a, T> => Part,
}
forms! { Target:
    [] &'a mut [T] => Slice,
    [] &'a mut Vec<T> => Slice,
    [N] &'a mut [T; N] => Slice,
    [] Part<'a, T> => Part,
}

impl<'a, T: Elem> Source<'a, T> {
    fn input(self, team: &Team) -> Input<'a> {
        match self {
            Source::Slice(slice) => Input::Private(Cow::Borrowed(crate::bytes_of(slice))),
            Source::Part(part) => part.input(team),
        }
    }
}

impl<'a, T: Elem> Target<'a, T> {
    pub(super) fn output(self, team: &Team) -> Output<'a> {
        match self {
            Target::Slice(slice) => Output::Private(crate::bytes_of_mut(slice)),
            Target::Part(part) => part.output(team),
        }
    }

    /// Converts the target into a source, for the root of a broadcast.
    pub(super) fn into_input(self, team: &Team) -> Input<'a> {
        match self {
            Target::Slice(slice) => Source::Slice(slice).input(team),
            Target::Part(part) => part.input(team),
        }
    }
}

/// Returns both ends of a call. A source that overlaps its target is copied first.
pub(super) fn ends<'a, T: Elem>(team: &Team, from: Source<'a, T>, into: Target<'a, T>) -> Ends<'a> {
    let overlap = match (&from, &into) {
        (Source::Part(from), Target::Part(into)) => from.overlaps(into),
        _ => false,
    };
    let input = from.input(team);
    let input = if overlap { input.copied() } else { input };
    let output = into.output(team);
    Ends { input, output }
}

impl<T: Elem> Part<'_, T> {
    fn input(&self, team: &Team) -> Input<'static> {
        Input::Shared(self.bytes().clone(), self.reach(team))
    }

    fn output(&self, team: &Team) -> Output<'static> {
        Output::Shared(self.bytes().clone(), self.reach(team))
    }
}

/// The buffers of a non-blocking collective until it ends. Made from a vector, two parts, or one
/// part that is both source and target.
#[derive(Debug)]
pub enum Buffers<'a, T> {
    /// The call owns the source and returns the result in another vector. (A broadcast returns the
    /// same one.)
    Owned(Vec<T>),
    /// Source and target in symmetric memory, which the call reads and writes in place. If the
    /// members share memory, there are no other copies unless source and target overlap. The
    /// returned vector is empty. Other accesses to the elements meanwhile see or produce any
    /// mixture of old and new values. The phase of the segment cannot change before the call has
    /// ended.
    Parts(Part<'a, T>, Part<'a, T>),
}

impl<T> From<Vec<T>> for Buffers<'_, T> {
    fn from(elements: Vec<T>) -> Self {
        Buffers::Owned(elements)
    }
}
impl<'a, T> From<(Part<'a, T>, Part<'a, T>)> for Buffers<'a, T> {
    fn from((from, into): (Part<'a, T>, Part<'a, T>)) -> Self {
        Buffers::Parts(from, into)
    }
}
impl<'a, T: Clone> From<Part<'a, T>> for Buffers<'a, T> {
    fn from(part: Part<'a, T>) -> Self {
        Buffers::Parts(part.clone(), part)
    }
}

/// The ends of a non-blocking call, and the memory of its result.
pub(super) type InFlight = (Input<'static>, Output<'static>, SharedBytes);

impl<T: Elem> Buffers<'_, T> {
    /// Returns the lengths of source and target in elements. `expected` maps the length of a source
    /// to that of its target.
    pub(super) fn lens(&self, expected: impl FnOnce(u64) -> u64) -> (u64, u64) {
        match self {
            Buffers::Owned(from) => (from.len() as u64, expected(from.len() as u64)),
            Buffers::Parts(from, into) => (from.len(), into.len()),
        }
    }

    /// Returns the ends for a target of `room` elements.
    pub(super) fn ends(self, team: &Team, room: u64) -> Result<InFlight> {
        match self {
            Buffers::Owned(from) => {
                let result = SharedBytes::adopt(crate::zeros::<T>(room)?);
                let input = Input::Shared(SharedBytes::adopt(from), None);
                Ok((input, Output::Shared(result.clone(), None), result))
            }
            Buffers::Parts(from, into) => {
                let (input, output) = (from.input(team), into.output(team));
                let input = if from.overlaps(&into) {
                    input.copied()
                } else {
                    input
                };
                Ok((input, output, nothing()))
            }
        }
    }

    /// Returns the ends of a broadcast. `gives`: this member is the root.
    pub(super) fn whole(self, team: &Team, gives: bool) -> InFlight {
        let (input, output, result) = match self {
            Buffers::Owned(all) => {
                let all = SharedBytes::adopt(all);
                (
                    Input::Shared(all.clone(), None),
                    Output::Shared(all.clone(), None),
                    all,
                )
            }
            Buffers::Parts(from, into) => (from.input(team), into.output(team), nothing()),
        };
        match gives {
            true => (input, Output::nothing(), result),
            false => (Input::NOTHING, output, result),
        }
    }
}

/// Returns memory of no bytes.
pub(super) fn nothing() -> SharedBytes {
    SharedBytes::adopt(Vec::<u8>::new())
}

/// Both ends of a call at a member.
#[derive(Debug)]
pub(crate) struct Ends<'a> {
    pub(crate) input: Input<'a>,
    pub(crate) output: Output<'a>,
}

impl Ends<'_> {
    pub(crate) fn nothing() -> Ends<'static> {
        Ends {
            input: Input::NOTHING,
            output: Output::nothing(),
        }
    }
}

/// The source bytes of a member.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    Private(Cow<'a, [u8]>),
    /// Memory of this unit's segment, with a pointer if the other members may read it in place.
    Shared(SharedBytes, Option<GlobalPtr<u8>>),
}

impl Input<'_> {
    /// The input of a member that gives nothing.
    pub(crate) const NOTHING: Input<'static> = Input::Private(Cow::Borrowed(&[]));

    /// Returns the pointer at which the other members read it.
    pub(crate) fn pointer(&self) -> Option<GlobalPtr<u8>> {
        match self {
            Input::Private(_) => None,
            Input::Shared(_, pointer) => *pointer,
        }
    }

    /// Returns its address in this process, for copies by the kernel.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Input::Private(bytes) => bytes.as_ptr() as u64,
            Input::Shared(bytes, _) => bytes.address(),
        }
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        match self {
            Input::Private(bytes) => copy(&bytes[offset as usize..][..into.len()], into),
            Input::Shared(bytes, _) => bytes.read(offset, into),
        }
    }

    pub(crate) fn copy_to(&self, offset: u64, into: &SharedBytes, at: u64, bytes: u64) {
        match self {
            Input::Private(own) => into.write(at, &own[offset as usize..][..bytes as usize]),
            Input::Shared(own, _) => into.copy_from(at, own, offset, bytes),
        }
    }

    /// Memory that operations in flight can own.
    pub(crate) fn memory(&self) -> Result<SharedBytes> {
        match self {
            Input::Private(bytes) => owned(bytes),
            Input::Shared(bytes, _) => Ok(bytes.clone()),
        }
    }

    /// Returns the memory if it is not private to the caller.
    pub(crate) fn shared(&self) -> Option<&SharedBytes> {
        match self {
            Input::Private(_) => None,
            Input::Shared(bytes, _) => Some(bytes),
        }
    }

    /// Returns an independent copy.
    fn copied(&self) -> Input<'static> {
        Input::Private(Cow::Owned(match self {
            Input::Private(bytes) => bytes.to_vec(),
            Input::Shared(bytes, _) => {
                let mut copy = vec![0; bytes.len() as usize];
                bytes.read(0, &mut copy);
                copy
            }
        }))
    }
}

/// The target of the bytes that a member receives.
#[derive(Debug)]
pub(crate) enum Output<'a> {
    Private(&'a mut [u8]),
    /// Memory of this unit's segment, with a pointer if the other members may write it in place.
    Shared(SharedBytes, Option<GlobalPtr<u8>>),
}

impl Output<'_> {
    /// Returns the output of a member that gets nothing.
    pub(crate) fn nothing() -> Output<'static> {
        Output::Private(&mut [])
    }

    pub(crate) fn pointer(&self) -> Option<GlobalPtr<u8>> {
        match self {
            Output::Private(_) => None,
            Output::Shared(_, pointer) => *pointer,
        }
    }

    pub(crate) fn write(&mut self, at: u64, from: &[u8]) {
        match self {
            Output::Private(bytes) => copy(from, &mut bytes[at as usize..][..from.len()]),
            Output::Shared(bytes, _) => bytes.write(at, from),
        }
    }

    pub(crate) fn copy_from(&mut self, at: u64, from: &SharedBytes, offset: u64, bytes: u64) {
        match self {
            Output::Private(own) => from.read(offset, &mut own[at as usize..][..bytes as usize]),
            Output::Shared(own, _) => own.copy_from(at, from, offset, bytes),
        }
    }

    /// Copies from the private memory of another process.
    pub(crate) fn copy_private(
        &mut self,
        at: u64,
        (pid, address): (i32, u64),
        bytes: u64,
    ) -> std::io::Result<()> {
        match self {
            Output::Private(own) => {
                let own = &mut own[at as usize..][..bytes as usize];
                samite_mem::copy::kernel::read_exact(pid, address, own)
            }
            Output::Shared(own, _) => {
                let mut done = 0;
                while done < bytes {
                    let place = (at + done, bytes - done);
                    match own.read_from_process(place.0, place.1, pid, address + done)? {
                        0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                        more => done += more,
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) fn copy_input(&mut self, at: u64, from: &Input<'_>, offset: u64, bytes: u64) {
        match (self, from) {
            (Output::Private(own), from) => {
                from.read(offset, &mut own[at as usize..][..bytes as usize]);
            }
            (Output::Shared(own, _), from) => from.copy_to(offset, own, at, bytes),
        }
    }

    /// Returns memory that operations in flight can own, with the current contents.
    /// [`Output::take_back`] copies the received bytes back.
    pub(crate) fn memory(&self) -> Result<SharedBytes> {
        match self {
            Output::Private(bytes) => owned(bytes),
            Output::Shared(bytes, _) => Ok(bytes.clone()),
        }
    }

    /// Returns the memory if it is not private to the caller.
    pub(crate) fn shared(&self) -> Option<&SharedBytes> {
        match self {
            Output::Private(_) => None,
            Output::Shared(bytes, _) => Some(bytes),
        }
    }

    pub(crate) fn take_back(&mut self, memory: &SharedBytes) {
        if let Output::Private(bytes) = self {
            memory.read(0, bytes);
        }
    }
}

fn owned(bytes: &[u8]) -> Result<SharedBytes> {
    let mut copy = crate::zeros::<u8>(bytes.len() as u64)?;
    copy.copy_from_slice(bytes);
    Ok(SharedBytes::adopt(copy))
}

/// Copies between private slices. A single word, the most frequent result, is copied without
/// calling `memmove`.
#[inline(always)]
fn copy(from: &[u8], into: &mut [u8]) {
    match (from.as_chunks::<8>(), into.as_chunks_mut::<8>()) {
        (([from], []), ([into], [])) => *into = *from,
        _ => into.copy_from_slice(from),
    }
}
