// protobuf's own header, as the library was compiled: with ThreadSanitizer it gives MapFieldBase two more members, and
// Debian's library, which is not instrumented, would look for the others where they are not.
#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
