// Helpers that the sources include and do not use.
#pragma once
