//! What a module exports, read without compiling it.

use crate::Refused;
use wasmparser::{CompositeInnerType, ExternalKind, Operator, Parser, Payload, TypeRef, ValType};

/// The parameters of a function, at most.
const PARAMETERS_MAX: u64 = 1000;
/// The compiler has a table of variables by blocks for each function, of 4 bytes: 256 MiB at most.
/// A function of 1000 lines has some 100 variables and 500 blocks.
const VARIABLES_BY_BLOCKS_MAX: u64 = 64 << 20;

/// Returns the names of the functions that a module exports with the type of an entry, `(i32, i32)
/// -> i32`, in its order.
///
/// # Errors
/// [`Refused::Invalid`]: it is no module, or has a function that runs when it starts, which no
/// limit of a call would hold for, or one that takes the compiler too much memory.
pub fn entries(code: &[u8]) -> Result<Vec<String>, Refused> {
    let invalid = |error: wasmparser::BinaryReaderError| Refused::Invalid(error.to_string());
    let (mut types, mut functions, mut exports) = (Vec::new(), Vec::new(), Vec::new());
    for payload in Parser::new(0).parse_all(code) {
        match payload.map_err(invalid)? {
            Payload::TypeSection(section) => {
                for group in section {
                    for of in group.map_err(invalid)?.into_types() {
                        types.push(is_entry(&of.composite_type.inner));
                    }
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Func(of) = import.map_err(invalid)?.ty {
                        functions.push(of);
                    }
                }
            }
            Payload::FunctionSection(section) => {
                for of in section {
                    functions.push(of.map_err(invalid)?);
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(invalid)?;
                    if export.kind == ExternalKind::Func {
                        exports.push((export.name.to_owned(), export.index));
                    }
                }
            }
            Payload::CodeSectionEntry(body) => {
                let mut variables = PARAMETERS_MAX;
                for of in body.get_locals_reader().map_err(invalid)? {
                    variables += u64::from(of.map_err(invalid)?.0);
                }
                let mut blocks = 1;
                for of in body.get_operators_reader().map_err(invalid)? {
                    blocks += blocks_of(&of.map_err(invalid)?);
                }
                if variables.saturating_mul(blocks) > VARIABLES_BY_BLOCKS_MAX {
                    let text = "a function has too many variables and branches together";
                    return Err(Refused::Invalid(text.into()));
                }
            }
            Payload::StartSection { .. } => {
                return Err(Refused::Invalid("it has a start function".into()));
            }
            _ => {}
        }
    }
    let is_wanted = |index: u32| {
        let of = functions.get(index as usize);
        of.and_then(|of| types.get(*of as usize))
            .copied()
            .unwrap_or(false)
    };
    exports.retain(|(_, index)| is_wanted(*index));
    Ok(exports.into_iter().map(|(name, _)| name).collect())
}

/// Returns how many blocks the compiler makes of an operator, at most.
fn blocks_of(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::Block { .. } | Operator::Br { .. } | Operator::BrIf { .. } => 2,
        Operator::Loop { .. } | Operator::If { .. } | Operator::Else => 4,
        Operator::BrTable { targets } => 2 + u64::from(targets.len()),
        Operator::Return | Operator::Unreachable => 1,
        // A branch for a trap, or to functions of the host.
        Operator::CallIndirect { .. }
        | Operator::MemoryCopy { .. }
        | Operator::MemoryFill { .. }
        | Operator::MemoryInit { .. }
        | Operator::TableCopy { .. }
        | Operator::TableFill { .. }
        | Operator::TableInit { .. } => 4,
        _ => 0,
    }
}

fn is_entry(of: &CompositeInnerType) -> bool {
    let CompositeInnerType::Func(of) = of else {
        return false;
    };
    of.params() == [ValType::I32; 2] && of.results() == [ValType::I32]
}
