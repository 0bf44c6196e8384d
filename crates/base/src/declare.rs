//! Declarations that say a thing once: structs with the defaults of their fields, enums with the names of their variants.

/// Declares a struct and its `Default`: a field that names no value after `=` has its type's own default.
///
/// ```
/// vllm_vcr_base::with_defaults! {
///     /// Options of a server.
///     #[derive(Debug)]
///     pub struct Options {
///         /// The port.
///         pub port: u16 = 8000,
///         /// The name, empty for none.
///         pub name: String,
///     }
/// }
/// assert_eq!((Options::default().port, Options::default().name.as_str()), (8000, ""));
/// ```
#[macro_export]
macro_rules! with_defaults {
    ($(#[$meta:meta])* $visibility:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $type:ty $(= $default:expr)?,)*
    }) => {
        $(#[$meta])*
        $visibility struct $name { $($(#[$field_meta])* $field_visibility $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $crate::with_defaults!(@ $($default)?),)* }
            }
        }
    };
    (@) => { Default::default() };
    (@ $default:expr) => { $default };
}

/// Declares an enum with the name of each variant: `ALL` has the variants in their order, `name` gives the name of one, as `Display` does,
/// and `named` finds one by it.
///
/// ```
/// vllm_vcr_base::named! {
///     /// A direction.
///     #[derive(Debug, Clone, Copy)]
///     pub enum Direction {
///         /// To the server.
///         Request = "request",
///         /// From it.
///         Response = "response",
///     }
/// }
/// assert_eq!(Direction::ALL.map(Direction::name), ["request", "response"]);
/// assert!(matches!(Direction::named("response"), Some(Direction::Response)));
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $visibility:vis enum $enum:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        $visibility enum $enum { $($(#[$variant_meta])* $variant,)+ }

        #[allow(dead_code)]
        impl $enum {
            /// All of them, in their order.
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name.
            #[must_use]
            $visibility const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Finds one by its name.
            #[must_use]
            $visibility fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl ::std::fmt::Display for $enum {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                formatter.write_str(self.name())
            }
        }
    };
}
