//! MessagePack: values as a tree, read within bounds, and the writer of single values.

mod read;
pub mod write;

pub use read::{MOST_DEPTH, MOST_VALUES, MsgpackError};

/// A value. Maps keep their order.
#[derive(Debug, Clone, PartialEq)]
pub enum MsgpackValue {
    /// `None`.
    Nil,
    /// `True` or `False`.
    Bool(bool),
    /// A whole number below zero.
    Int(i64),
    /// A whole number.
    Uint(u64),
    /// A number of 64 bits, or one of 32 that was widened.
    Float(f64),
    /// A text; bytes that are no UTF-8 are replaced.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list, or a struct by position.
    Array(Vec<MsgpackValue>),
    /// A table.
    Map(Vec<(MsgpackValue, MsgpackValue)>),
    /// An extension: its type and its bytes.
    Ext(i8, Vec<u8>),
}

impl MsgpackValue {
    /// A map with names as keys.
    #[must_use]
    pub fn map<'a>(fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::Map(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// The value of a name in a map.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Map(fields) = self else { return None };
        fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
    }

    /// The value of a name in a map, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        let Self::Map(fields) = self else { return None };
        fields.iter_mut().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
    }

    /// A text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// A whole number that is not below zero.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        if let Self::Uint(number) = self { Some(*number) } else { None }
    }

    /// A whole number of 64 bits with sign.
    pub(crate) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Uint(number) => i64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Int(number) => Some(*number as f64),
            Self::Uint(number) => Some(*number as f64),
            _ => None,
        }
    }

    /// True or false.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    /// The items of a list.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// Checks whether it is `None`.
    #[must_use]
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => write::nil(out),
            Self::Bool(value) => write::boolean(out, *value),
            Self::Int(number) => write::int(out, *number),
            Self::Uint(number) => write::uint(out, *number),
            Self::Float(number) => write::float(out, *number),
            Self::Text(text) => write::text(out, text),
            Self::Bytes(bytes) => write::bytes(out, bytes),
            Self::Ext(kind, bytes) => write::ext(out, *kind, bytes),
            Self::Array(items) => {
                write::array(out, items.len());
                items.iter().for_each(|item| item.write(out));
            }
            Self::Map(fields) => {
                write::map(out, fields.len());
                for (key, value) in fields {
                    key.write(out);
                    value.write(out);
                }
            }
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

macro_rules! holds {
    ($($type:ty: $held:ident => $value:expr,)+) => {$(
        impl From<$type> for MsgpackValue {
            fn from($held: $type) -> Self {
                $value
            }
        }
    )+};
}

holds! {
    &str: text => Self::Text(text.to_owned()),
    bool: value => Self::Bool(value),
    f64: number => Self::Float(number),
    u64: number => Self::Uint(number),
    u32: number => Self::Uint(number.into()),
    usize: number => Self::Uint(number as u64),
}

impl<T: Into<Self>> From<Option<T>> for MsgpackValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Nil, Into::into)
    }
}

impl<T: Into<Self>> From<Vec<T>> for MsgpackValue {
    fn from(items: Vec<T>) -> Self {
        Self::Array(items.into_iter().map(Into::into).collect())
    }
}
