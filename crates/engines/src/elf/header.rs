//! The headers of a shared object, checked before the loader maps it.

use crate::Refused;

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SECTION: usize = 64;
/// The most program headers.
const SEGMENTS_MAX: usize = 64;
/// The most memory that an object may take.
const MEMORY_MAX: u64 = 256 << 20;

const SHARED_OBJECT: u16 = 3;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const STACK: u32 = 0x6474_e551;
const EXECUTABLE: u32 = 1;

/// The machines that Samite runs on, and some others that may be met.
const MACHINES: [(u16, &str); 6] = [
    (3, "x86"),
    (21, "powerpc64"),
    (40, "arm"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
];

fn invalid(text: impl Into<String>) -> Refused {
    Refused::Invalid(text.into())
}

/// Little-endian numbers at offsets; 0 behind the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// Fails unless the file has these bytes.
    fn contains(&self, what: &str, offset: u64, len: u64) -> Result<(), Refused> {
        match offset.checked_add(len) {
            Some(end) if end <= self.0.len() as u64 => Ok(()),
            _ => Err(invalid(format!(
                "the shared object is truncated: its {what} end behind its {} bytes",
                self.0.len()
            ))),
        }
    }
}

/// Checks that the bytes are a complete shared object, whatever machine it is for; returns that
/// machine, named as in `std::env::consts::ARCH`.
///
/// # Errors
/// [`Refused::Invalid`].
pub fn machine(code: &[u8]) -> Result<&'static str, Refused> {
    read(code).map(|(machine, _)| machine)
}

/// As [`machine`]; also returns how many bytes of memory its segments take.
fn read(code: &[u8]) -> Result<(&'static str, u64), Refused> {
    let bytes = Bytes(code);
    if !code.starts_with(b"\x7fELF") {
        return Err(invalid("it is not an ELF file"));
    }
    bytes.contains("header", 0, HEADER as u64)?;
    let (class, order) = (code[4], code[5]);
    if (class, order) != (2, 1) {
        return Err(invalid(
            "it is not an ELF file of 64 bits in little-endian order",
        ));
    }
    let machine = bytes.u16(18);
    let known = MACHINES.iter().find(|(number, _)| *number == machine);
    let Some((_, name)) = known else {
        return Err(invalid(format!(
            "it is machine code for ELF machine {machine}, which Samite does not know"
        )));
    };
    if bytes.u16(16) != SHARED_OBJECT {
        return Err(invalid("it is not a shared object: link it with -shared"));
    }
    let in_memory = segments(&bytes)?;
    // Linkers write the table of sections last: if it is there, the file is complete.
    let (table, size, count) = (bytes.u64(40), bytes.u16(58), bytes.u16(60));
    if count > 0 && size as usize != SECTION {
        return Err(invalid("its section headers have an unknown size"));
    }
    bytes.contains("sections", table, size as u64 * count as u64)?;
    Ok((name, in_memory))
}

/// Checks that the bytes are a complete shared object for this machine; returns how many bytes of
/// memory its segments take.
pub(super) fn check(code: &[u8]) -> Result<u64, Refused> {
    let ((name, in_memory), this) = (read(code)?, std::env::consts::ARCH);
    match name == this {
        true => Ok(in_memory),
        false => Err(invalid(format!(
            "it is machine code for {name}, and this machine is {this}"
        ))),
    }
}

/// Checks the program headers; returns how many bytes of memory the segments take.
fn segments(bytes: &Bytes<'_>) -> Result<u64, Refused> {
    let (table, size, count) = (bytes.u64(32), bytes.u16(54), bytes.u16(56));
    if size as usize != SEGMENT || count == 0 || count as usize > SEGMENTS_MAX {
        return Err(invalid("it has no program headers of a known size"));
    }
    bytes.contains("program headers", table, SEGMENT as u64 * count as u64)?;
    let (mut end, mut has_dynamic, mut has_stack) = (None, false, false);
    let mut all = 0;
    for segment in 0..count as usize {
        let at = table as usize + segment * SEGMENT;
        let (kind, flags) = (bytes.u32(at), bytes.u32(at + 4));
        let (offset, address) = (bytes.u64(at + 8), bytes.u64(at + 16));
        let (in_file, in_memory) = (bytes.u64(at + 32), bytes.u64(at + 40));
        bytes.contains("segments", offset, in_file)?;
        match kind {
            LOAD => {
                let last = end.unwrap_or(0);
                let next = address.saturating_add(in_memory);
                if address < last || in_memory < in_file || next > MEMORY_MAX {
                    return Err(invalid("its segments overlap, or take too much memory"));
                }
                end = Some(next);
                all += in_memory;
            }
            DYNAMIC => has_dynamic = true,
            INTERPRETER => return Err(invalid("it is a program: link it with -shared")),
            // The loader makes the stacks of the whole process executable for such an object, as
            // for one that does not say. If several say, it follows the last one.
            STACK if has_stack => return Err(invalid("it says twice what stack it needs")),
            STACK if flags & EXECUTABLE != 0 => return Err(stack()),
            STACK => has_stack = true,
            _ => {}
        }
    }
    if end.is_none() || !has_dynamic {
        return Err(invalid("it has nothing to load, or no dynamic section"));
    }
    match has_stack {
        true => Ok(all),
        false => Err(stack()),
    }
}

fn stack() -> Refused {
    invalid("it wants an executable stack: link it with -z noexecstack")
}
