//! What a module takes the compiler: its limits of memory and time.
//!
//! wasmtime bounds neither, so a module is measured before it is compiled. The unit of its cost is
//! what an operand of an operator takes: a few microseconds, and some hundred bytes while its
//! function is compiled. To the operators come, by what was measured with wasmtime 48:
//! * Joins: a variable that is set inside of a block or loop, and used behind it, gets a value
//!   there. 500 variables and 250 loops in each other, in 6 KB, took three minutes.
//! * Blocks of the compiler, whose time grows with their square.
//! * A table of values by blocks ([`VALUES_BY_BLOCKS_MAX`]). Variables are the locals, the results
//!   of all blocks, and the parameters of all loops. Values on the stack of WebAssembly live from
//!   block to block, too.
//!
//! Functions are compiled one after another, so the memory is bounded by function
//! ([`FUNCTION_MAX`]), and the time by module ([`MODULE_MAX`]). On two cores of an AMD EPYC, no
//! module was found that takes more than 7 s or 300 MiB (`figures`).
//!
//! A function of 1000 lines has some 100 variables, 500 blocks and 10,000 operators. The largest
//! kernel of the tests costs 6500, and its module 19,000.

use crate::Refused;
use wasmparser::{
    BlockType, FuncType, FuncValidator, FunctionBody, ModuleArity, Operator, WasmFeatures,
    WasmModuleResources,
};

/// What modules may use: what clang, rustc and numba emit. There are no references to functions but
/// those in tables, no tail calls, exceptions, or objects that a collector frees.
pub(super) const FEATURES: WasmFeatures = WasmFeatures::FLOATS
    .union(WasmFeatures::MUTABLE_GLOBAL)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::RELAXED_SIMD)
    .union(WasmFeatures::THREADS);

/// The most items of a section: types, functions with those that are imported, globals, exports,
/// elements of tables, data segments.
const ITEMS_MAX: u64 = 4096;
/// The most parameters and results of a function or a block. Compilers return one value, or few;
/// numba passes each array as seven parameters and more.
const PARAMETERS_MAX: usize = 128;
const RESULTS_MAX: usize = 8;
/// The most values times blocks of a function.
const VALUES_BY_BLOCKS_MAX: u64 = 4 << 20;
/// The most that a function costs.
const FUNCTION_MAX: u64 = 512 << 10;
/// The most that a module costs.
const MODULE_MAX: u64 = 3 << 19;
/// What a parameter or result costs that passes through memory.
const THROUGH_MEMORY: u64 = 8;
/// What a call costs beside its operands.
const CALL: u64 = 5;
/// What a variable costs at a join, in operands.
const JOIN: u64 = 16;
/// So many blocks cost themselves once more each.
const BLOCKS_TWICE: u64 = 1 << 10;
/// The most loops that are nested in each other.
const LOOPS_DEEP_MAX: usize = 32;
/// What the compiler adds to each function: values that it keeps for itself, and blocks.
const VALUES_OF_FUNCTION: u64 = 8;
const BLOCKS_OF_FUNCTION: u64 = 8;
/// The code of a small function without operators: its head, its end, and how others enter it.
const FUNCTION: u64 = 64;
/// Blocks of an operator that is a loop of the compiler, or a call with checks.
const BLOCKS_MAX: u64 = 8;

fn invalid(text: impl Into<String>) -> Refused {
    Refused::Invalid(text.into())
}

pub(super) fn unreadable(error: wasmparser::BinaryReaderError) -> Refused {
    Refused::Invalid(error.to_string())
}

/// What the parts of a module cost that have been seen.
#[derive(Default)]
pub(super) struct Cost {
    module: u64,
}

/// Checks the number of items of a section, in a module that has so many of them elsewhere.
pub(super) fn check_items(of: &str, items: u64) -> Result<(), Refused> {
    match items > ITEMS_MAX {
        true => Err(invalid(format!("it has more than {ITEMS_MAX} {of}"))),
        false => Ok(()),
    }
}

impl Cost {
    fn add(&mut self, cost: u64) -> Result<(), Refused> {
        self.module += cost;
        match self.module > MODULE_MAX {
            true => Err(invalid("it is too large for the compiler")),
            false => Ok(()),
        }
    }

    /// Adds a type: there is code to call the functions of each.
    pub(super) fn add_type(&mut self, of: &FuncType) -> Result<(), Refused> {
        let (parameters, results) = (of.params().len(), of.results().len());
        if parameters > PARAMETERS_MAX || results > RESULTS_MAX {
            return Err(invalid(format!(
                "a type has more than {PARAMETERS_MAX} parameters or {RESULTS_MAX} results"
            )));
        }
        self.add(FUNCTION + entering(of))
    }

    /// Adds what it takes to enter functions from outside.
    pub(super) fn add_entrances(&mut self, cost: u64) -> Result<(), Refused> {
        self.add(cost)
    }

    /// Adds code that runs at the start of an instance: of a global, an element, a data segment.
    pub(super) fn add_start(&mut self, items: u64) -> Result<(), Refused> {
        self.add(items.saturating_mul(BLOCKS_MAX))
    }

    /// Validates a function, and adds it.
    pub(super) fn add_function(
        &mut self,
        of: &mut FuncValidator<impl WasmModuleResources>,
        body: &FunctionBody<'_>,
    ) -> Result<(), Refused> {
        of.read_locals(&mut body.get_binary_reader())
            .map_err(unreadable)?;
        let mut variables = VALUES_OF_FUNCTION + u64::from(of.len_locals());
        let (mut blocks, mut height) = (BLOCKS_OF_FUNCTION, 0);
        let mut joins = Joins::default();
        let mut cost = FUNCTION + u64::from(of.len_locals());
        let mut operators = body.get_operators_reader().map_err(unreadable)?;
        while !operators.eof() {
            let (operator, at) = operators.read_with_offset().map_err(unreadable)?;
            let arity = operator.operator_arity(of);
            let arity = arity.map_or(0, |(takes, leaves)| u64::from(takes) + u64::from(leaves));
            let made = variables_of(&operator, of);
            variables += made;
            cost += made * JOIN;
            of.op(at, &operator).map_err(unreadable)?;
            height = height.max(u64::from(of.operand_stack_height()));
            let made = blocks_of(&operator)?;
            blocks += made;
            cost += joins.add(&operator, variables)? * JOIN;
            cost += match &operator {
                // It sets the variables of each target.
                Operator::BrTable { targets } => (1 + arity) * (1 + u64::from(targets.len())),
                Operator::Call { .. } | Operator::CallIndirect { .. } => CALL + arity,
                _ => 1 + arity,
            };
            cost += made;
            if cost > FUNCTION_MAX {
                return Err(invalid("a function is too large for the compiler"));
            }
        }
        operators.finish().map_err(unreadable)?;
        if (variables + height).saturating_mul(blocks) > VALUES_BY_BLOCKS_MAX {
            let text = "a function has too many variables and branches together";
            return Err(invalid(text));
        }
        cost += blocks * (blocks / BLOCKS_TWICE);
        if cost > FUNCTION_MAX {
            return Err(invalid("a function has too many branches for the compiler"));
        }
        self.add(cost)
    }
}

/// The blocks and loops around an operator.
#[derive(Default)]
struct Joins {
    /// Of each, how often variables were set inside, and whether it is a loop.
    around: Vec<(u64, bool)>,
    loops: usize,
}

impl Joins {
    /// Goes on to the next operator. Returns how many of `variables` may get a value at a join
    /// there.
    ///
    /// # Errors
    /// [`Refused::Invalid`]: there are too many loops in each other.
    fn add(&mut self, operator: &Operator<'_>, variables: u64) -> Result<u64, Refused> {
        match operator {
            Operator::Block { .. } | Operator::If { .. } => self.around.push((0, false)),
            Operator::Loop { .. } => {
                // The compiler sets a variable of its own: when the call is to end.
                self.around.push((1, true));
                self.loops += 1;
                if self.loops > LOOPS_DEEP_MAX {
                    let text = format!("loops are nested more than {LOOPS_DEEP_MAX} deep");
                    return Err(invalid(text));
                }
            }
            Operator::LocalSet { .. }
            | Operator::LocalTee { .. }
            | Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryInit { .. } => {
                if let Some((sets, _)) = self.around.last_mut() {
                    *sets += 1;
                }
            }
            Operator::End => {
                let (sets, is_loop) = self.around.pop().unwrap_or_default();
                self.loops -= usize::from(is_loop);
                if let Some((around, _)) = self.around.last_mut() {
                    *around += sets;
                }
                return Ok(sets.min(variables));
            }
            _ => {}
        }
        Ok(0)
    }
}

/// Returns what it takes to enter a function of this type from outside: its parameters and results
/// pass through memory.
pub(super) fn entering(of: &FuncType) -> u64 {
    (of.params().len() + of.results().len()) as u64 * THROUGH_MEMORY
}

/// Returns how many variables the compiler makes of an operator.
fn variables_of(operator: &Operator<'_>, module: &impl ModuleArity) -> u64 {
    let arity = |of: &BlockType| module.block_type_arity(*of).unwrap_or((0, 0));
    let variables = match operator {
        Operator::Block { blockty } | Operator::If { blockty } => arity(blockty).1,
        Operator::Loop { blockty } => arity(blockty).0 + arity(blockty).1,
        _ => 0,
    };
    u64::from(variables)
}

/// Returns how many blocks the compiler makes of an operator, at most, with those that it puts on
/// the edges between two others.
///
/// # Errors
/// [`Refused::Invalid`]: it is not offered.
fn blocks_of(operator: &Operator<'_>) -> Result<u64, Refused> {
    Ok(match operator {
        Operator::Block { .. } | Operator::Br { .. } | Operator::BrIf { .. } => 2,
        Operator::If { .. } | Operator::Else => 4,
        Operator::BrTable { targets } => 2 + u64::from(targets.len()),
        Operator::Return | Operator::Unreachable => 1,
        Operator::Loop { .. }
        | Operator::CallIndirect { .. }
        | Operator::MemoryGrow { .. }
        | Operator::MemoryCopy { .. }
        | Operator::MemoryFill { .. }
        | Operator::MemoryInit { .. }
        | Operator::MemoryAtomicWait32 { .. }
        | Operator::MemoryAtomicWait64 { .. }
        | Operator::MemoryAtomicNotify { .. } => BLOCKS_MAX,
        Operator::DataDrop { .. } | Operator::TypedSelect { .. } => 0,
        other => match proposal_of(other) {
            "mvp"
            | "sign_extension"
            | "saturating_float_to_int"
            | "simd"
            | "relaxed_simd"
            | "threads" => 0,
            // What reads and writes tables, and refers to functions.
            _ => {
                let name = format!("{other:?}");
                let name = name.split_once(' ').map_or(&*name, |(name, _)| name);
                return Err(invalid(format!("{name} is not offered to moved code")));
            }
        },
    })
}

/// Returns the part of the standard that an operator comes from.
fn proposal_of(operator: &Operator<'_>) -> &'static str {
    macro_rules! proposals {
        ($(@$proposal:ident $name:ident $({ $($field:ident: $of:ty),* })? => $visit:ident
            ($($arity:tt)*))*) => {
            match operator {
                $(Operator::$name { .. } => stringify!($proposal),)*
                _ => "none",
            }
        };
    }
    wasmparser::for_each_operator!(proposals)
}
