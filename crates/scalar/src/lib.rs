//! Scalar programs: what is computed for each element of an element-wise operation, as data.
//!
//! The engine traces, joins and differentiates them; whatever carries a plan out (the CPU's vector loops, a code
//! generator for another device) reads them. So they belong to none of these.

/// The list of functions, by how many numbers they take: what an enum and its answers are made of.
macro_rules! functions {
    ($(of $arity:literal { $($(#[$doc:meta])* $function:ident,)* })*) => {
        /// A function of one to three numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Function {
            $($($(#[$doc])* $function,)*)*
        }

        impl Function {
            /// Every function.
            pub const ALL: [Function; [$($(Function::$function,)*)*].len()] = [$($(Function::$function,)*)*];

            /// How many numbers it takes.
            pub fn arity(self) -> usize {
                match self {
                    $($(Function::$function)|* => $arity,)*
                }
            }
        }
    };
}

functions! {
    of 1 {
        Neg,
        Abs,
        Exp,
        Log,
        Sqrt,
        Tanh,
        TanhSlope,
        Sigmoid,
        Erf,
        Sin,
        Cos,
        Relu,
        Silu,
        GeluTanh,
        GeluTanhSlope,
        GeluErf,
        /// Rounds to the nearest bf16: what storing and loading again would do.
        RoundBf16,
        /// Rounds to the nearest f16.
        RoundF16,
    }
    of 2 {
        Add,
        Sub,
        Mul,
        Div,
        Minimum,
        Maximum,
        Pow,
        /// Comparisons give 1 for true and 0 for false.
        Less,
        LessEqual,
        Equal,
        NotEqual,
    }
    of 3 {
        /// The second number where the first is not zero, else the third.
        Select,
    }
}

/// Where an instruction takes a number from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An operand's element.
    Input(usize),
    /// The result of an earlier instruction.
    Result(usize),
    /// A fixed number.
    Constant(f32),
}

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Instruction {
    /// What is computed.
    pub function: Function,
    /// From what; only the first [`Function::arity`] count.
    pub arguments: [Argument; 3],
}

impl Instruction {
    /// The arguments that count.
    pub fn used(&self) -> &[Argument] {
        &self.arguments[..self.function.arity()]
    }
}

/// A straight-line program on numbers; its value is `result`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalarProgram {
    /// The instructions, in order.
    pub instructions: Vec<Instruction>,
    /// The value of the program.
    pub result: Argument,
}

impl ScalarProgram {
    /// Whether it reads nothing but so many operands and the results of earlier instructions.
    pub fn is_whole(&self, operands: usize) -> bool {
        let is_there = |argument: &Argument, results: usize| match *argument {
            Argument::Input(index) => index < operands,
            Argument::Result(index) => index < results,
            Argument::Constant(_) => true,
        };
        let whole = |(index, instruction): (usize, &Instruction)| {
            instruction.used().iter().all(|argument| is_there(argument, index))
        };
        self.instructions.iter().enumerate().all(whole) && is_there(&self.result, self.instructions.len())
    }
}
